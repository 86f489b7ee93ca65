"""The actions of the episodes under way: with its seed they make an env what it is, or was."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, pairwise

import numpy as np

from flowrl.core.batch import Array

RECENT = 4096  # entries as they were sent; of what is older, each env has its own
MOST_BYTES = 64 << 20  # of that

Episode = tuple[int, Array]  # its seed, its actions (T, …)


class ActionLog:
    """What each env was sent since it last began afresh.

    Mostly that is its episode; an env that goes on in the next episode where the last one ended has
    several. What is too long loses its beginning, and says so.
    """

    def __init__(self, count: int) -> None:
        self._recent: deque[tuple[Array | None, Array]] = deque()
        self._first = 0  # the number of the oldest entry
        self._since = [0] * count  # the entry at which each env began
        self._older: list[list[Array]] = [
            [] for _ in range(count)
        ]  # its actions before the recent ones
        self._lost = [0] * count  # actions that are not kept, before those
        self._begun: list[list[tuple[int, int]]] = [[(0, 0)] for _ in range(count)]
        # ^ of its episodes: the seed, and how many actions were before it

    def add(self, ids: Array | None, actions: Array) -> None:
        """These envs (None: all) were sent these actions; the array is not written to again."""
        self._recent.append((ids, actions))
        if len(self._recent) >= RECENT:
            self._deal()

    def begin(self, index: int, seed: int) -> None:
        """An env begins afresh: what it did before is of no use, and goes when nobody needs it."""
        old, self._since[index] = self._since[index], self._first + len(self._recent)
        self._begun[index] = [(seed, 0)]
        if self._lost[index] or self._older[index]:
            self._lost[index], self._older[index] = 0, []
        if old > self._first:
            return  # another needs the oldest
        oldest = min(self._since)
        while self._first < oldest:
            self._recent.popleft()
            self._first += 1

    def go_on(self, index: int, seed: int, steps: int) -> None:
        """An env's next episode goes on where the last one, of so many steps, ended."""
        self._begun[index].append((seed, self._begun[index][-1][1] + steps))

    def lose(self, index: int) -> None:
        """What the env did does not say where it is."""
        self._lost[index] += 1

    def restore(self, index: int, episodes: Sequence[Episode]) -> None:
        """The env did all that: it is in the last of these episodes."""
        self.begin(index, episodes[0][0])
        for (_, actions), (seed, _) in pairwise(episodes):
            self.go_on(index, seed, len(actions))
        self._older[index] = [actions for _, actions in episodes]

    def of(self, index: int) -> tuple[list[Array], bool]:
        """The actions of this env's episode, and whether that is all of them."""
        kept, begin = self._kept(index), self._begun[index][-1][1] - self._lost[index]
        return kept[max(begin, 0) :], begin >= 0

    def episodes(self, index: int) -> tuple[list[tuple[int, list[Array]]], bool]:
        """The seeds and actions of all its episodes since it began afresh, and whether that is all."""
        kept, begun = self._kept(index), self._begun[index]
        ends = [*(before for _, before in begun[1:]), len(kept)]
        found = [(seed, kept[begin:end]) for (seed, begin), end in zip(begun, ends, strict=True)]
        return found, not self._lost[index]

    def _kept(self, index: int) -> list[Array]:
        since = self._since[index] - self._first
        found = [action for part in self._older[index] for action in part]
        for ids, actions in islice(self._recent, max(since, 0), None):
            if ids is None:
                found.append(actions[index])
            elif len(where := np.flatnonzero(ids == index)):
                found.append(actions[where[0]])
        return found

    def _deal(self) -> None:
        """The older half to the envs: many small arrays would take far more memory than actions do."""
        half = [self._recent.popleft() for _ in range(RECENT // 2)]
        everyone = np.arange(len(self._since))
        ids = [everyone if at is None else at for at, _ in half]
        number = np.repeat(np.arange(self._first, self._first + len(half)), [len(at) for at in ids])
        at, actions = np.concatenate(ids), np.concatenate([acts for _, acts in half])
        wanted = number >= np.array(self._since)[at]
        at, actions = at[wanted], actions[wanted]
        order = np.argsort(at, kind="stable")
        bounds = np.searchsorted(at[order], np.arange(len(self._since) + 1))
        for index, (begin, end) in enumerate(pairwise(bounds)):
            self._keep(index, actions[order[begin:end]])
        self._first += len(half)
        self._bound()

    def _keep(self, index: int, actions: Array) -> None:
        if self._lost[index]:  # of no use without what was before
            self._lost[index] += len(actions)
        elif len(actions):
            self._older[index].append(actions)

    def _bound(self) -> None:
        """Whoever has most loses it, until there is no more than may be."""
        sizes = [sum(part.nbytes for part in parts) for parts in self._older]
        while sum(sizes) > MOST_BYTES:
            most = int(np.argmax(sizes))
            self._lost[most] = sum(map(len, self._older[most]))
            self._older[most], sizes[most] = [], 0
