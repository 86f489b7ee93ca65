"""The actions of the episodes under way: with its seed they make an env what it is, or was."""

from __future__ import annotations

from collections import deque

import numpy as np

from flowrl.batch import Array

MOST_STEPS = 100_000
MOST_BYTES = 64 << 20


class ActionLog:
    """Actions in the order in which they were sent, as far back as the oldest living episode.

    A very long episode is cut at its beginning: `of` says so.
    """

    def __init__(self, count: int) -> None:
        self._sent: deque[tuple[Array | None, Array]] = deque()
        self._first = 0  # the number of the oldest entry
        self._since = [0] * count  # the entry at which each env's episode began
        self._most = MOST_STEPS

    def add(self, ids: Array | None, actions: Array) -> None:
        """These envs (None: all) were sent these actions; the array is not written to again."""
        self._sent.append((ids, actions))
        if len(self._sent) > self._most:
            self._sent.popleft()
            self._first += 1
        elif len(self._sent) == 1:
            self._most = min(MOST_STEPS, MOST_BYTES // (actions.nbytes + 256))

    def begin(self, index: int) -> None:
        """An env begins an episode: what it did before is of no use, and goes when nobody needs it."""
        old, self._since[index] = self._since[index], self._first + len(self._sent)
        if old > self._first:
            return  # another needs the oldest
        oldest = min(self._since)
        while self._first < oldest:
            self._sent.popleft()
            self._first += 1

    def of(self, index: int) -> tuple[list[Array], bool]:
        """The actions of this env's episode, and whether that is all of them."""
        since = self._since[index]
        found = []
        for number, (ids, actions) in enumerate(self._sent, self._first):
            if number < since:
                continue
            if ids is None:
                found.append(actions[index])
            elif len(where := np.flatnonzero(ids == index)):
                found.append(actions[where[0]])
        return found, since >= self._first
