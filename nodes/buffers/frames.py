"""Observations stored once: a row holds the numbers of its frames, and rows share frames.

`next_obs` of a row is `obs` of the next one, and stacked frames shift by one from row to row, so a
row brings one new frame; an episode's last observation is one more. Nothing is believed: frames are
shared where their bytes are equal, and what does not fit the pattern is stored as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.buffers.storage import Rows

SPARE = 32  # one frame more for so many rows: ends of episodes
MOST_AHEAD = 16  # steps that n-step rows may look ahead and still share


ADOPTED_ROWS = 64  # of rows that are found in a file, so many leave together

WORDS = (np.uint64, np.uint32, np.uint16, np.uint8)

Grow = Callable[[Rows, int], Rows]  # a pool, and how many places it needs


class Encoded(NamedTuple):
    """Rows, and what is to be written of them."""

    now: Array  # (n, stacked), places of obs
    later: Array  # of next_obs
    held: int  # newest rows that keep their frames
    places: Array  # of frames that are new
    frames: Array


class Undo(NamedTuple):
    """What `Frames` were before, and the floors that were taken away."""

    written: int
    tails: Array
    first: list[tuple[int, int]]
    last: list[tuple[int, int]]


class Frames:
    """Frames are numbered as they come; a row holds the places where its frames lie.

    Where frames are limited and run out, the oldest rows leave; else there will be more places.
    """

    def __init__(self, stacked: int, obs: Column, pool: Rows, grow: Grow | None) -> None:
        """Of observations of this column, `stacked` frames each. `pool`: (places, bytes of a frame).

        `grow` gives the pool more places; None: it is limited.
        """
        self.stacked = stacked
        self._dtype, self._shape = np.dtype(obs.dtype), obs.shape
        self._frame_bytes = obs.row_bytes // stacked
        # the widest words that a frame consists of: they are compared sooner than bytes
        self._word = next(w for w in WORDS if self._frame_bytes % np.dtype(w).itemsize == 0)
        self.written = 0
        self._pool, self._grow = pool, grow
        self._where = np.arange(len(pool))  # the place of frame f is at f modulo their count
        self._ahead = 0  # next_obs of a row is obs of the row so far behind it; 0: not known yet
        self._floors: deque[tuple[int, int]] = deque()  # from this row on, frames from this one
        self._tails = np.empty((0, stacked), np.int64)  # the next_obs that rows to come begin with

    @property
    def nbytes(self) -> int:
        """Bytes of all frames."""
        return self._pool.nbytes

    def encode(self, obs: Array, next_obs: Array, first_row: int, held: int) -> Encoded:
        """Rows as places of frames; the first row has the number `first_row`.

        Of the rows that there will be, the newest `held` are to be kept. Nothing is written yet.
        """
        if not len(obs):
            none = np.empty((0, self.stacked), np.int64)
            return Encoded(none, none, held, none[:, 0], np.empty((0, self._frame_bytes), np.uint8))
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
        stop = self.written + int(new.sum())
        held = self._make_room(first_row, numbers, stop, held)
        self.written, self._tails = stop, later[apart]
        added = np.concatenate([now[new[:, 0]], later[new[:, 1]]])
        frames = np.concatenate([seen[new[:, 0]], then[new[:, 1]]]).view(np.uint8)
        places = self._places
        return Encoded(places(now), places(later), held, places(added), frames)

    def undo(self) -> None:
        """What was encoded last will not be written."""
        self.written, self._tails, first, last = self._undo
        self._floors.pop()
        self._floors.extendleft(reversed(first))
        self._floors.extend(reversed(last))

    def write(self, encoded: Encoded) -> None:
        """Write the frames of rows that were encoded."""
        self._pool[encoded.places] = encoded.frames

    def decode(self, places: Array) -> Array:
        """Observations (n, …) of the frames at these places (n, stacked)."""
        if not len(places):
            return np.empty((0, *self._shape), self._dtype)
        frames = self._pool.take(places.reshape(-1), 0, mode="clip")
        return frames.reshape(-1).view(self._dtype).reshape(len(places), *self._shape)

    def clear(self) -> None:
        """No row needs a frame any more."""
        self._floors.clear()
        self._tails = self._tails[:0]

    def state_dict(self) -> dict[str, Any]:
        """The frames that rows need, where they lie, and what the next rows may share."""
        places = self._places(np.arange(self._floor, self.written))
        return {
            "frames": self._pool.take(places, 0, mode="clip"),
            "places": places,
            "room": len(self._where),
            "written": self.written,
            "ahead": self._ahead,
            "floors": list(self._floors),
            "tails": self._tails.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold these frames, in the same places."""
        self._have_room(int(state["room"]))
        self.written, self._ahead = int(state["written"]), int(state["ahead"])
        self._floors = deque((int(row), int(frame)) for row, frame in state["floors"])
        self._tails = np.array(state["tails"], np.int64).reshape(-1, self.stacked)
        self._seat(np.array(state["places"], np.int64))
        self._pool[state["places"]] = state["frames"]

    def adopt(self, places: Array, first_row: int) -> None:
        """The pool holds the frames of rows already: their places (n, …), the oldest row first."""
        distinct, first, which = np.unique(places, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.argsort(order)[which.reshape(places.shape)]
        self.written = len(distinct)
        self._seat(distinct[order])
        least = np.minimum.accumulate(number.min(1)[::-1])[::-1]
        some = range(0, len(places), ADOPTED_ROWS)
        self._floors = deque((first_row + row, int(least[row])) for row in some)

    def _bytes_of(self, obs: Array) -> Array:
        """Observations as words of bytes, (n, stacked, words of a frame)."""
        flat = np.ascontiguousarray(obs).reshape(-1).view(self._word)
        words = self._frame_bytes // np.dtype(self._word).itemsize
        return flat.reshape(len(obs), self.stacked, words)

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
                if np.array_equal(self._frames(tail).view(self._word), seen[row]):
                    linked[row] = tails.pop(k)
                    break
        return linked

    def _number(self, new: Array) -> Array:
        """The next numbers for new frames, in order; for others that of the frame before it."""
        numbers: Array = self.written - 1 + new.reshape(-1).cumsum()
        return numbers.reshape(new.shape)

    @property
    def _floor(self) -> int:
        """No row needs a frame of a lower number."""
        return self._floors[0][1] if self._floors else self.written

    def _places(self, numbers: Array) -> Array:
        return self._where[numbers % len(self._where)]

    def _frames(self, numbers: Array) -> Array:
        return self._pool.take(self._places(numbers), 0, mode="clip")

    def _make_room(self, first_row: int, numbers: Array, stop: int, held: int) -> int:
        """Places for all frames that the rows need that will be held; gives how many these are."""
        rows_stop, floor = first_row + len(numbers), int(numbers.min())
        self._have_room(stop - floor)
        old, new = Undo(self.written, self._tails, [], []), self._floors
        self._undo = old
        while new and new[-1][1] >= floor:
            old.last.append(new.pop())
            first_row = old.last[-1][0]
        new.append((first_row, floor))
        while len(new) > 1 and new[1][0] <= rows_stop - held:
            old.first.append(new.popleft())
        while self._grow is None and stop - self._floor > len(self._where):
            old.first.append(new.popleft())
        try:
            self._have_room(stop - self._floor)
        except BaseException:
            self.undo()
            raise
        return min(held, rows_stop - new[0][0])

    def _have_room(self, needed: int) -> None:
        """More places than ever before: short episodes need more than was thought."""
        if needed <= len(self._where):
            return
        if self._grow is None:
            raise ValueError(
                f"rows that came together need {needed} frames, `size_bytes` has room for "
                f"{len(self._where)}; make it larger, or push fewer rows at once"
            )
        taken = self._places(np.arange(self._floor, self.written))
        self._pool = self._grow(self._pool, needed + needed // SPARE)
        self._seat(taken)

    def _seat(self, taken: Array) -> None:
        """The newest frames lie there; what comes next goes to the other places of the pool."""
        places = len(self._pool)
        slots = np.arange(self.written - len(taken), self.written) % places
        free = np.ones((2, places), bool)
        free[0, slots] = free[1, taken] = False
        self._where = np.empty(places, np.int64)
        self._where[slots] = taken
        self._where[free[0]] = np.flatnonzero(free[1])


def _equal(a: Array, b: Array) -> Array:
    """Whether rows are equal, (n,)."""
    return (a == b).all((1, 2))


def _differ(stacks: Array) -> Array:
    """Whether each frame of a stack differs from the one before it; the first does."""
    new = np.ones(stacks.shape[:2], bool)
    for k in range(1, stacks.shape[1]):
        new[:, k] = (stacks[:, k] != stacks[:, k - 1]).any(1)
    return new
