"""The actions of the current episodes. With how these began, they determine an env's state."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice, pairwise

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.episode_start import EpisodeStart

RECENT_ENTRIES = 4096  # entries kept as they were added; older actions are kept by env
MAX_OLDER_BYTES = 64 << 20

# How an episode began, and its actions (T, …).
EpisodeActions = tuple[EpisodeStart, Sequence[Array] | Array]


class ActionLog:
    """The actions that each env received since it last began afresh.

    Usually these are the actions of its current episode. An env that continues in the next episode where the last one
    ended has several episodes. If there are too many actions, the earliest are dropped, and the log of that env is
    incomplete.
    """

    def __init__(self, count: int) -> None:
        self._recent: deque[tuple[Array | None, Array]] = deque()
        self._first_entry = 0  # the number of the oldest recent entry
        self._start_entry = [0] * count  # the entry at which each env began afresh
        self._older: list[list[Array]] = [[] for _ in range(count)]  # before the recent entries
        self._dropped = [0] * count  # actions before those in `_older`
        # Of each env's episodes: how it began, and the number of actions before it.
        self._episode_starts = [[(EpisodeStart(0), 0)] for _ in range(count)]

    def add(self, ids: Array | None, actions: Array) -> None:
        """Add an action for each of these envs (None: of all). The caller does not write to the arrays again."""
        self._recent.append((ids, actions))
        if len(self._recent) >= RECENT_ENTRIES:
            self._move_older_half()

    def begin_afresh(self, index: int, start: EpisodeStart) -> None:
        """The env's next episode does not depend on earlier ones: forget these."""
        old_start = self._start_entry[index]
        self._start_entry[index] = self._first_entry + len(self._recent)
        self._episode_starts[index] = [(start, 0)]
        if self._dropped[index] or self._older[index]:
            self._dropped[index], self._older[index] = 0, []
        if old_start > self._first_entry:
            return  # another env needs the oldest entry
        oldest = min(self._start_entry)
        while self._first_entry < oldest:
            self._recent.popleft()
            self._first_entry += 1

    def begin_continuing(self, index: int, start: EpisodeStart, last_length: int) -> None:
        """The env's next episode continues where the last one, of this length, ended."""
        starts = self._episode_starts[index]
        starts.append((start, starts[-1][1] + last_length))

    def mark_incomplete(self, index: int) -> None:
        """The env's actions do not determine its state."""
        self._dropped[index] += 1

    def restore(self, index: int, episodes: Sequence[EpisodeActions]) -> None:
        """Replace the log of an env: it played these episodes, and is in the last of them."""
        self.begin_afresh(index, episodes[0][0])
        for (_, actions), (start, _) in pairwise(episodes):
            self.begin_continuing(index, start, len(actions))
        self._older[index] = [np.asarray(actions) for _, actions in episodes]

    def current_start(self, index: int) -> EpisodeStart:
        """How the env's current episode began."""
        return self._episode_starts[index][-1][0]

    def current_episode(self, index: int) -> tuple[list[Array], bool]:
        """The actions of the env's current episode, and whether they are complete."""
        kept = self._kept_actions(index)
        begin = self._episode_starts[index][-1][1] - self._dropped[index]
        return kept[max(begin, 0) :], begin >= 0

    def episodes(self, index: int) -> tuple[list[tuple[EpisodeStart, list[Array]]], bool]:
        """The env's episodes since it began afresh, and whether their actions are complete."""
        kept, starts = self._kept_actions(index), self._episode_starts[index]
        ends = [*(begin for _, begin in starts[1:]), len(kept)]
        found = [(start, kept[begin:end]) for (start, begin), end in zip(starts, ends, strict=True)]
        return found, not self._dropped[index]

    def _kept_actions(self, index: int) -> list[Array]:
        start = self._start_entry[index] - self._first_entry
        found = [action for part in self._older[index] for action in part]
        for ids, actions in islice(self._recent, max(start, 0), None):
            if ids is None:
                found.append(actions[index])
            elif len(where := np.flatnonzero(ids == index)):
                found.append(actions[where[0]])
        return found

    def _move_older_half(self) -> None:
        """Collect the older half of the entries by env: many small arrays take far more memory than the actions."""
        half = [self._recent.popleft() for _ in range(RECENT_ENTRIES // 2)]
        all_ids = np.arange(len(self._start_entry))
        ids = [all_ids if at is None else at for at, _ in half]
        entries = np.arange(self._first_entry, self._first_entry + len(half))
        entry = np.repeat(entries, [len(at) for at in ids])
        at, actions = np.concatenate(ids), np.concatenate([acts for _, acts in half])
        needed = entry >= np.array(self._start_entry)[at]
        at, actions = at[needed], actions[needed]
        order = np.argsort(at, kind="stable")
        bounds = np.searchsorted(at[order], np.arange(len(self._start_entry) + 1))
        for index, (begin, end) in enumerate(pairwise(bounds)):
            self._append_older(index, actions[order[begin:end]])
        self._first_entry += len(half)
        self._drop_excess()

    def _append_older(self, index: int, actions: Array) -> None:
        if self._dropped[index]:  # useless without the actions before
            self._dropped[index] += len(actions)
        elif len(actions):
            self._older[index].append(actions)

    def _drop_excess(self) -> None:
        """While there are too many bytes, drop the actions of the env that has most."""
        sizes = [sum(part.nbytes for part in parts) for parts in self._older]
        while sum(sizes) > MAX_OLDER_BYTES:
            largest = int(np.argmax(sizes))
            self._dropped[largest] = sum(map(len, self._older[largest]))
            self._older[largest], sizes[largest] = [], 0
