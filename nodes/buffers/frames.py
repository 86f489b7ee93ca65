"""Observations stored once: a row holds the numbers of its frames, and rows share frames.

`next_obs` of a row is `obs` of the next one, and stacked frames shift by one from row to row, so a
row brings one new frame; an episode's last observation is one more. Nothing is believed: frames are
shared where their bytes are equal, and what does not fit the pattern is stored as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Array, Column
from flowrl.nodes.buffers.capacity import must_fit

SPARE = 32  # one frame more for so many rows: ends of episodes
MOST_AHEAD = 16  # steps that n-step rows may look ahead and still share


class Frames:
    """Frames are numbered as they come; number f lies at place f modulo their count."""

    def __init__(self, rows: int, stacked: int, obs: Column) -> None:
        """Frames of so many rows, whose observations are of this column, `stacked` frames each."""
        self.rows, self.stacked = rows, stacked
        self._dtype, self._shape = np.dtype(obs.dtype), obs.shape
        self._frame_bytes = obs.row_bytes // stacked
        self.written = 0
        self._pool = np.empty((0, self._frame_bytes), np.uint8)  # (places, bytes of a frame)
        self._ahead = 0  # next_obs of a row is obs of the row so far behind it; 0: not known yet
        self._floors: deque[tuple[int, int]] = deque()  # from this row on, frames from this one
        self._tails = np.empty((0, stacked), np.int64)  # the next_obs that rows to come begin with

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return self._pool.nbytes

    def encode(self, obs: Array, next_obs: Array, first_row: int) -> tuple[Array, Array]:
        """Numbers (n, stacked) of the frames of rows; the first of them has the number `first_row`."""
        if not len(obs):
            return np.empty((0, self.stacked), np.int64), np.empty((0, self.stacked), np.int64)
        seen, then = self._bytes_of(obs), self._bytes_of(next_obs)
        ahead = self._look_ahead(seen, then)
        shared = np.zeros(len(then), bool)
        shared[: len(then) - ahead] = _equal(then[: len(then) - ahead], seen[ahead:])
        apart = np.flatnonzero(~shared)
        heads = self._heads(seen, shared)
        linked = self._linked(seen, heads)
        shifted = apart[_equal(then[apart, :-1], seen[apart, 1:])]
        new = np.zeros((len(seen), 2, self.stacked), bool)
        new[:, 0, -1] = True
        new[heads, 0] = _differ(seen[heads])
        new[list(linked), 0] = False
        new[apart, 1] = _differ(then[apart])
        new[shifted, 1] = np.arange(self.stacked) == self.stacked - 1
        numbers = self._number(new)
        now, later = numbers[:, 0], numbers[:, 1]
        for row, tail in linked.items():
            now[row] = tail
        rows = np.setdiff1d(np.arange(len(now)), heads)
        for _ in range(self.stacked - 1):
            now[rows, :-1] = now[rows - 1, 1:]
        later[shared] = now[np.flatnonzero(shared) + ahead]
        later[shifted, :-1] = now[shifted, 1:]
        self._make_room(first_row, numbers)
        self._write(now[new[:, 0]], seen[new[:, 0]])
        self._write(later[new[:, 1]], then[new[:, 1]])
        self._tails = later[apart]
        return now, later

    def decode(self, numbers: Array) -> Array:
        """Observations (n, …) of frames with these numbers (n, stacked)."""
        if not len(numbers):
            return np.empty((0, *self._shape), self._dtype)
        frames = self._pool.take(numbers % len(self._pool), 0, mode="clip")
        return frames.reshape(-1).view(self._dtype).reshape(len(numbers), *self._shape)

    def clear(self) -> None:
        """No row needs a frame any more."""
        self._floors.clear()
        self._tails = self._tails[:0]

    def state_dict(self) -> dict[str, Any]:
        """All frames, and what the next rows may share."""
        return {
            "pool": self._pool[: self.written].copy(),
            "places": len(self._pool),
            "written": self.written,
            "ahead": self._ahead,
            "floors": list(self._floors),
            "tails": self._tails.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold these frames."""
        held = state["pool"]
        self._pool = np.empty((state["places"], *held.shape[1:]), np.uint8)
        self._pool[: len(held)] = held
        self.written, self._ahead = int(state["written"]), int(state["ahead"])
        self._floors = deque((int(row), int(frame)) for row, frame in state["floors"])
        self._tails = np.array(state["tails"], np.int64).reshape(-1, self.stacked)

    def _bytes_of(self, obs: Array) -> Array:
        """Observations as bytes, (n, stacked, bytes of a frame)."""
        flat = np.ascontiguousarray(obs).reshape(-1).view(np.uint8)
        return flat.reshape(len(obs), self.stacked, self._frame_bytes)

    def _look_ahead(self, seen: Array, then: Array) -> int:
        """How far behind a row the one lies whose observation is its next: one, or n-step's n."""
        for ahead in range(1, min(len(seen), MOST_AHEAD + 1)):
            if not self._ahead and np.array_equal(then[0], seen[ahead]):
                self._ahead = ahead
        return min(self._ahead or 1, len(seen))

    def _heads(self, seen: Array, shared: Array) -> Array:
        """Rows that share nothing with the row before."""
        if self.stacked == 1:
            return np.flatnonzero(~np.append(False, shared[:-1])[: len(seen)])
        goes_on = np.zeros(len(seen), bool)
        goes_on[1:] = _equal(seen[1:, :-1], seen[:-1, 1:])
        return np.flatnonzero(~goes_on)

    def _linked(self, seen: Array, heads: Array) -> dict[int, Array]:
        """The heads that a row of the token before ended with, and their frames."""
        linked: dict[int, Array] = {}
        tails = list(self._tails)
        for row in heads.tolist():
            for k, tail in enumerate(tails):
                if np.array_equal(self._pool[tail % len(self._pool)], seen[row]):
                    linked[row] = tails.pop(k)
                    break
        return linked

    def _number(self, new: Array) -> Array:
        """The next numbers for new frames, in order; for others that of the frame before it."""
        numbers = self.written - 1 + new.reshape(-1).cumsum()
        self.written += int(new.sum())
        return numbers.reshape(new.shape)

    def _make_room(self, first_row: int, numbers: Array) -> None:
        """Places for all frames that the rows need that will be held, these among them."""
        oldest_row = first_row + len(numbers) - self.rows
        floor = int(numbers.min())
        while self._floors and self._floors[-1][1] >= floor:
            first_row = self._floors.pop()[0]
        self._floors.append((first_row, floor))
        while len(self._floors) > 1 and self._floors[1][0] <= oldest_row:
            self._floors.popleft()
        needed = self.written - self._floors[0][1]
        if needed > len(self._pool):
            self._grow(needed)

    def _grow(self, needed: int) -> None:
        """More places than ever before: short episodes need more than was thought."""
        places = max(self.rows + self.rows // SPARE + 1, needed + needed // SPARE)
        must_fit(places * self._frame_bytes)
        pool = np.empty((places, self._frame_bytes), np.uint8)
        if len(self._pool):
            old = np.arange(max(self.written - needed, 0), self.written)
            pool[old % places] = self._pool[old % len(self._pool)]
        self._pool = pool

    def _write(self, numbers: Array, frames: Array) -> None:
        self._pool[numbers % len(self._pool)] = frames


def _equal(a: Array, b: Array) -> Array:
    """Whether rows are equal, (n,)."""
    return (a == b).all((1, 2))


def _differ(stacks: Array) -> Array:
    """Whether each frame of a stack differs from the one before it; the first does."""
    new = np.ones(stacks.shape[:2], bool)
    for k in range(1, stacks.shape[1]):
        new[:, k] = (stacks[:, k] != stacks[:, k - 1]).any(1)
    return new
