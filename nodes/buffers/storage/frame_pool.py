"""A pool of frames that rows share, so that each observation is stored once.

The `next_obs` of a row is the `obs` of the next row, and stacked frames shift by one from row to row. A row
therefore adds one new frame, and the last observation of an episode adds one more. The pool does not rely on
this pattern: frames are shared only if their bytes are equal, and all others are stored as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowrl.core.array_pieces import LiveArray
from flowrl.core.batch import Array, Column
from flowrl.nodes.buffers.storage.row_checksums import widest_word
from flowrl.nodes.buffers.storage.storage import ColumnStore

SPARE_EVERY_ROWS = 32  # rows for each spare frame; spare frames are for the ends of episodes
BLOCK_PLACES = 256
MAX_OFFSET = 16  # the largest n of n-step rows whose `next_obs` is shared
RECOVERED_BLOCK_ROWS = 64  # the size of the blocks in which recovered rows are evicted

# Takes a pool, and the number of places that it needs.
GrowColumn = Callable[[ColumnStore, int], ColumnStore]


class EncodedRows(NamedTuple):
    """Rows as places of frames, and the new frames, which are not written yet."""

    obs_places: Array  # (n, stacked)
    next_obs_places: Array  # (n, stacked)
    held: int  # the number of newest rows whose frames are kept
    places: Array  # the places of the new frames
    frames: Array


class PoolSnapshot(NamedTuple):
    """The state of a pool before the last `encode`, and the floors that it removed."""

    written: int
    tails: Array
    first: list[tuple[int, int]]
    last: list[tuple[int, int]]


class FramePool:
    """Stores frames, numbered in the order of their arrival. A row contains the places of its frames.

    If a limited pool is full, the oldest rows are evicted. Other pools grow.
    """

    def __init__(
        self, stacked: int, obs: Column, pool: ColumnStore, grow: GrowColumn | None
    ) -> None:
        """Make a pool for observations of the type `obs` with `stacked` frames each.

        Each row of `pool` has the bytes of one frame. `grow` adds places; if it is None, the pool is limited.
        """
        self.stacked = stacked
        self._dtype, self._shape = np.dtype(obs.dtype), obs.shape
        self._frame_bytes = obs.row_bytes // stacked
        # Frames are compared in the widest words that they consist of, which is faster than in bytes.
        self._word = widest_word(self._frame_bytes)
        self.written = 0  # frames ever written; the number of the next frame
        self._pool, self._grow = pool, grow
        self._place_of = np.arange(len(pool))  # frame f is at place _place_of[f % len(pool)]
        self._used = 0  # the number of places up to the last one that was written
        self._writes = 0
        # Of the newest write to each block of places; they say what has changed since a snapshot.
        self._write_numbers = np.zeros(len(pool) // BLOCK_PLACES + 1, np.int64)
        self._content = object()  # replaced when places change otherwise
        # The `next_obs` of a row is the `obs` of the row at this offset; 0 if it is not known yet.
        self._offset = 0
        # Pairs (row, frame): the row and all later rows need no frame with a lower number.
        self._floors: deque[tuple[int, int]] = deque()
        # The frames of each `next_obs` of the last token that was not shared; the next token may begin with one.
        self._tails = np.empty((0, stacked), np.int64)

    @property
    def nbytes(self) -> int:
        """The bytes of all frames."""
        return self._pool.nbytes

    def encode(self, obs: Array, next_obs: Array, first_row: int, held: int) -> EncodedRows:
        """Encode rows as places of frames. The first row has the number `first_row`. No frame is written yet.

        `held` is the number of newest rows, including these, to keep.
        """
        if not len(obs):
            empty = np.empty((0, self.stacked), np.int64)
            no_frames = np.empty((0, self._frame_bytes), np.uint8)
            return EncodedRows(empty, empty, held, empty[:, 0], no_frames)
        obs_words, next_words = self._as_words(obs), self._as_words(next_obs)
        offset = self._find_offset(obs_words, next_words)
        shared = np.zeros(len(next_words), bool)
        shared[: len(next_words) - offset] = _equal(
            next_words[: len(next_words) - offset], obs_words[offset:]
        )
        unshared = np.flatnonzero(~shared)
        heads = self._find_heads(obs_words, shared)
        linked = self._link_heads(obs_words, heads)
        shifted = unshared[_equal(next_words[unshared, :-1], obs_words[unshared, 1:])]
        new = np.zeros((len(obs_words), 2, self.stacked), bool)
        new[:, 0, -1] = True
        new[heads, 0] = _differs_from_previous(obs_words[heads])
        new[list(linked), 0] = False
        new[unshared, 1] = _differs_from_previous(next_words[unshared])
        new[shifted, 1] = np.arange(self.stacked) == self.stacked - 1
        numbers = self._number_frames(new)
        obs_frames, next_frames = numbers[:, 0], numbers[:, 1]
        for row, tail in linked.items():
            obs_frames[row] = tail
        rows = np.setdiff1d(np.arange(len(obs_frames)), heads)
        for _ in range(self.stacked - 1):
            obs_frames[rows, :-1] = obs_frames[rows - 1, 1:]
        next_frames[shared] = obs_frames[np.flatnonzero(shared) + offset]
        next_frames[shifted, :-1] = obs_frames[shifted, 1:]
        stop = self.written + int(new.sum())
        held = self._make_room(first_row, numbers, stop, held)
        self.written, self._tails = stop, next_frames[unshared]
        added = np.concatenate([obs_frames[new[:, 0]], next_frames[new[:, 1]]])
        frames = np.concatenate([obs_words[new[:, 0]], next_words[new[:, 1]]]).view(np.uint8)
        places = self._places
        return EncodedRows(places(obs_frames), places(next_frames), held, places(added), frames)

    def undo(self) -> None:
        """Restore the state before the last `encode`, whose frames are not to be written."""
        self.written, self._tails, first, last = self._before
        self._floors.pop()
        self._floors.extendleft(reversed(first))
        self._floors.extend(reversed(last))

    def write(self, encoded: EncodedRows) -> None:
        """Write the new frames of encoded rows."""
        places = encoded.places
        self._pool[places] = encoded.frames
        if len(places):
            self._writes += 1
            self._write_numbers[places // BLOCK_PLACES] = self._writes
            self._used = max(self._used, int(places.max()) + 1)

    def decode(self, places: Array) -> Array:
        """Return observations (n, …) from the places of their frames (n, stacked)."""
        if not len(places):
            return np.empty((0, *self._shape), self._dtype)
        frames = self._pool.take(places.reshape(-1), 0, mode="clip")
        return frames.reshape(-1).view(self._dtype).reshape(len(places), *self._shape)

    def clear(self) -> None:
        """Remove all rows. No frame is needed any more."""
        self._floors.clear()
        self._tails = self._tails[:0]

    def state_dict(self, live: bool = False) -> dict[str, Any]:
        """Return the frames at their places, and the frames that the next rows may share."""
        frames = self._live_array(self._pool, self._used, self._newest_write)
        place_of = self._live_array(self._place_of, len(self._place_of), lambda first, stop: 0)
        return {
            "frames": frames if live else frames.copy(),
            "place_of": place_of if live else place_of.copy(),
            "written": self.written,
            "ahead": self._offset,
            "floors": list(self._floors),
            "tails": self._tails.copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore frames at their places."""
        place_of = np.array(state["place_of"], np.int64)
        if len(place_of) > len(self._pool):
            self._grow_to(len(place_of))
        self.written, self._offset = int(state["written"]), int(state["ahead"])
        self._floors = deque((int(row), int(frame)) for row, frame in state["floors"])
        self._tails = np.array(state["tails"], np.int64).reshape(-1, self.stacked)
        if len(self._pool) == len(place_of):
            self._place_of = place_of
        else:
            needed = np.arange(self._floor, self.written)
            self._assign_places(place_of[needed % len(place_of)])
        self._used = len(state["frames"])
        self._pool[0 : self._used] = state["frames"]
        self._content = object()

    def _live_array(
        self, rows: ColumnStore, used: int, version: Callable[[int, int], int]
    ) -> LiveArray:
        sample = rows[0:0]
        shape = (used, *sample.shape[1:])
        return LiveArray(
            sample.dtype, shape, lambda first, stop: rows[first:stop], version, self._content
        )

    def _newest_write(self, first: int, stop: int) -> int:
        """Return the number of the newest write to these places."""
        blocks = slice(first // BLOCK_PLACES, (stop - 1) // BLOCK_PLACES + 1)
        return int(self._write_numbers[blocks].max())

    def recover(self, places: Array, first_row: int) -> None:
        """Continue with a pool that contains the frames of rows, by their places (n, …), the oldest row first."""
        distinct, first, which = np.unique(places, return_index=True, return_inverse=True)
        order = np.argsort(first)
        number = np.argsort(order)[which.reshape(places.shape)]
        self.written = len(distinct)
        self._used = int(distinct[-1]) + 1
        self._assign_places(distinct[order])
        lowest = np.minimum.accumulate(number.min(1)[::-1])[::-1]
        blocks = range(0, len(places), RECOVERED_BLOCK_ROWS)
        self._floors = deque((first_row + row, int(lowest[row])) for row in blocks)

    def _as_words(self, obs: Array) -> Array:
        """Return observations as (n, stacked, words of a frame)."""
        flat = np.ascontiguousarray(obs).reshape(-1).view(self._word)
        words = self._frame_bytes // np.dtype(self._word).itemsize
        return flat.reshape(len(obs), self.stacked, words)

    def _find_offset(self, obs: Array, next_obs: Array) -> int:
        """Find the distance from a row to the row whose `obs` is its `next_obs`: 1, or n for n-step rows."""
        for offset in range(1, min(len(obs), MAX_OFFSET + 1)):
            if not self._offset and np.array_equal(next_obs[0], obs[offset]):
                self._offset = offset
        return min(self._offset or 1, len(obs))

    def _find_heads(self, obs: Array, shared: Array) -> Array:
        """Find the rows that share no frame with the previous row."""
        if self.stacked == 1:
            return np.flatnonzero(~np.append(False, shared[:-1])[: len(obs)])
        continues = np.zeros(len(obs), bool)
        continues[1:] = _equal(obs[1:, :-1], obs[:-1, 1:])
        return np.flatnonzero(~continues)

    def _link_heads(self, obs: Array, heads: Array) -> dict[int, Array]:
        """Find the heads that equal a `next_obs` of the previous token; return its frames by row."""
        linked: dict[int, Array] = {}
        tails = list(self._tails)
        for row in heads.tolist():
            for k, tail in enumerate(tails):
                if np.array_equal(self._read_frames(tail).view(self._word), obs[row]):
                    linked[row] = tails.pop(k)
                    break
        return linked

    def _number_frames(self, new: Array) -> Array:
        """Number new frames consecutively. Each other frame gets the number of the previous frame."""
        numbers: Array = self.written - 1 + new.reshape(-1).cumsum()
        return numbers.reshape(new.shape)

    @property
    def _floor(self) -> int:
        """The lowest number of a frame that a row needs."""
        return self._floors[0][1] if self._floors else self.written

    def _places(self, numbers: Array) -> Array:
        return self._place_of[numbers % len(self._place_of)]

    def _read_frames(self, numbers: Array) -> Array:
        return self._pool.take(self._places(numbers), 0, mode="clip")

    def _make_room(self, first_row: int, numbers: Array, stop: int, held: int) -> int:
        """Reserve places for all frames that the held rows need; return how many rows can be held."""
        stop_row, floor = first_row + len(numbers), int(numbers.min())
        self._reserve(stop - floor)
        before, floors = PoolSnapshot(self.written, self._tails, [], []), self._floors
        self._before = before
        while floors and floors[-1][1] >= floor:
            before.last.append(floors.pop())
            first_row = before.last[-1][0]
        floors.append((first_row, floor))
        while len(floors) > 1 and floors[1][0] <= stop_row - held:
            before.first.append(floors.popleft())
        while self._grow is None and stop - self._floor > len(self._place_of):
            before.first.append(floors.popleft())
        try:
            self._reserve(stop - self._floor)
        except BaseException:
            self.undo()
            raise
        return min(held, stop_row - floors[0][0])

    def _reserve(self, needed: int) -> None:
        """Grow the pool to the places needed. Short episodes need more frames than were allocated."""
        if needed <= len(self._place_of):
            return
        if self._grow is None:
            raise ValueError(
                f"rows that are pushed together need {needed} frames, but `size_bytes` allows "
                f"{len(self._place_of)}; increase `size_bytes`, or push fewer rows at once"
            )
        self._grow_to(needed + needed // SPARE_EVERY_ROWS)

    def _grow_to(self, places: int) -> None:
        if self._grow is None:
            raise ValueError(
                f"the state has {places} frames, but `size_bytes` allows {len(self._pool)}; "
                "set `size_bytes` as in the run that saved the state"
            )
        occupied = self._places(np.arange(self._floor, self.written))
        self._pool = self._grow(self._pool, places)
        self._assign_places(occupied)

    def _assign_places(self, occupied: Array) -> None:
        """Assign these places to the newest frames, and the other places of the pool to later frames."""
        places = len(self._pool)
        slots = np.arange(self.written - len(occupied), self.written) % places
        free = np.ones((2, places), bool)
        free[0, slots] = free[1, occupied] = False
        self._place_of = np.empty(places, np.int64)
        self._place_of[slots] = occupied
        self._place_of[free[0]] = np.flatnonzero(free[1])
        self._write_numbers = np.resize(self._write_numbers, places // BLOCK_PLACES + 1)
        self._content = object()


def _equal(a: Array, b: Array) -> Array:
    """Return which rows are equal, (n,)."""
    return (a == b).all((1, 2))


def _differs_from_previous(stacks: Array) -> Array:
    """Return which frames of each stack differ from the previous frame; the first always does."""
    new = np.ones(stacks.shape[:2], bool)
    for k in range(1, stacks.shape[1]):
        new[:, k] = (stacks[:, k] != stacks[:, k - 1]).any(1)
    return new
