"""Segments: consecutive rows of one episode, linked to the segment of a later token in which the episode continues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.origin import COLLECTOR_COLUMN, ENV_COLUMN, ORIGIN_SCHEMA, STEP_COLUMN

NO_SEGMENT = -1

# The rows of the table in `SegmentIndex`: the first and last row of each segment, and its neighbours.
FIRST_ROW, LAST_ROW, NEXT_SEGMENT, PREVIOUS_SEGMENT = range(4)


def segment_bounds(last: Array) -> tuple[Array, Array]:
    """Return first rows and ends (exclusive) (S,) of the segments of a table; `last` (n,) ends a segment."""
    ends = np.flatnonzero(last) + 1
    if len(last) and not last[-1]:
        ends = np.append(ends, len(last))
    return np.append(0, ends[:-1])[: len(ends)], ends


def recovered_columns(ring: Ring, names: Iterable[str] = ()) -> tuple[dict[str, Array], int]:
    """Read `names` and the columns by which rows of an earlier process are followed; and the first row's number."""
    numbers = np.arange(ring.oldest, ring.written)
    names = {"last", "terminated", "truncated", *ORIGIN_SCHEMA, *names} & set(ring.columns)
    return ring.take(ring.places_of(numbers), names), int(numbers[0])


class SegmentIndex:
    """Finds, for each row that is held, the rows before and after it in its episode.

    Rows and segments are numbered in the order of arrival. The rows of a segment follow each other; `last` ends a
    segment. If rows have origin columns, a segment is linked to the segment of a later token in which its episode
    continues, which begins with the next step of the same env.
    """

    def __init__(self) -> None:
        self._first_segment = 0  # the number of the oldest segment that is held
        self._table = np.empty((4, 0), np.int64)
        self._count = 0
        # The newest segment of each env whose episode may continue: (collector, env) to (segment, last step).
        self._open: dict[tuple[int, int], tuple[int, int]] = {}

    def push(self, columns: Mapping[str, Array], first: int) -> Array:
        """Add rows, the first of which has the number `first`; return the numbers of their segments."""
        begins, ends = segment_bounds(columns["last"])
        numbers = self._first_segment + self._count + np.arange(len(begins))
        self._reserve(len(begins))
        new = self._table[:, self._count : self._count + len(begins)]
        new[FIRST_ROW], new[LAST_ROW] = begins + first, ends + first - 1
        new[NEXT_SEGMENT:] = NO_SEGMENT
        self._count += len(begins)
        if ENV_COLUMN in columns:
            self._link(columns, begins, ends, numbers)
        return numbers

    def forget_before(self, oldest: int) -> None:
        """Remove the rows before this one."""
        removed = int(np.searchsorted(self._table[LAST_ROW, : self._count], oldest))
        self._first_segment += removed
        self._count -= removed
        self._table = self._table[:, removed:]
        if self._count:
            self._table[FIRST_ROW, 0] = max(self._table[FIRST_ROW, 0], oldest)

    def clear(self) -> None:
        """Remove all rows. Later rows continue none of them."""
        self._first_segment += self._count
        self._count = 0
        self._table = self._table[:, :0]
        self._open.clear()

    def segments_of(self, rows: Array) -> Array:
        """Return the segments of rows."""
        held_ends = self._table[LAST_ROW, : self._count]
        return self._first_segment + np.searchsorted(held_ends, rows)

    def first_rows(self, segments: Array) -> Array:
        """Return the first row of each segment that is held."""
        return self._lookup(FIRST_ROW, segments)

    def last_rows(self, segments: Array) -> Array:
        """Return the last row of each segment."""
        return self._lookup(LAST_ROW, segments)

    def next_segments(self, segments: Array) -> Array:
        """Return the segment in which each segment continues, or NO_SEGMENT."""
        return self._lookup(NEXT_SEGMENT, segments)

    def previous_segments(self, segments: Array) -> Array:
        """Return the segment that continues in each segment, or NO_SEGMENT if it is not held."""
        previous = self._lookup(PREVIOUS_SEGMENT, segments)
        return np.where(previous < self._first_segment, NO_SEGMENT, previous)

    def follow(self, rows: Array, steps: int) -> tuple[Array, Array]:
        """Return the `steps` rows (W, steps) from each row (W,) on, and which of them exist.

        Beyond the end of the episode, the last row is repeated.
        """
        followed = np.empty((len(rows), steps), np.int64)
        exists = np.ones((len(rows), steps), bool)
        row, segment = rows, self.segments_of(rows)
        end = self.last_rows(segment)
        for k in range(steps):
            followed[:, k] = row
            if k + 1 == steps:
                break
            segment, row, continues = self._next_row(segment, row, end)
            end = self.last_rows(segment)
            exists[:, k + 1] = exists[:, k] & continues
        return followed, exists

    def count_after(self, rows: Array) -> Array:
        """Count the rows of its episode that follow each row."""
        segments = self.segments_of(rows)
        return self.last_rows(segments) - rows + self._count_beyond(segments, self.next_segments)

    def count_before(self, rows: Array) -> Array:
        """Count the held rows of its episode that precede each row."""
        segments = self.segments_of(rows)
        beyond = self._count_beyond(segments, self.previous_segments)
        return rows - self.first_rows(segments) + beyond

    def offset_rows(self, rows: Array, steps: Array) -> Array:
        """Return the rows that are `steps` later in the episode, or earlier if negative. They must exist."""
        segment, row = self.segments_of(rows), rows + steps
        while True:
            after, before = row > self.last_rows(segment), row < self.first_rows(segment)
            if not (after | before).any():
                return row
            next_one = np.where(after, self.next_segments(segment), segment)
            previous = np.where(before, self.previous_segments(segment), segment)
            excess = row - self.last_rows(segment) - 1
            shortfall = self.first_rows(segment) - row - 1
            row = np.where(after, self.first_rows(next_one) + excess, row)
            row = np.where(before, self.last_rows(previous) - shortfall, row)
            segment = np.where(after, next_one, previous)

    def _count_beyond(self, segments: Array, neighbours: Callable[[Array], Array]) -> Array:
        """Count the rows of all further segments in one direction."""
        counts, segments = np.zeros(len(segments), np.int64), neighbours(segments)
        while (more := segments != NO_SEGMENT).any():
            existing = segments[more]
            counts[more] += self.last_rows(existing) - self.first_rows(existing) + 1
            segments = segments.copy()
            segments[more] = neighbours(existing)
        return counts

    def _next_row(self, segment: Array, row: Array, end: Array) -> tuple[Array, Array, Array]:
        """Return segment and number of the row after each row, or of the row itself, and whether a next row exists."""
        at_end = row == end
        if not at_end.any():
            return segment, row + 1, np.True_  # type: ignore[return-value]
        after = np.where(at_end, self.next_segments(segment), segment)
        continues = after != NO_SEGMENT
        after = np.where(continues, after, segment)
        following = np.where(at_end, self.first_rows(after), row + 1)
        return after, np.where(continues, following, row), continues

    def _lookup(self, field: int, segments: Array) -> Array:
        return self._table[field].take(segments - self._first_segment, mode="clip")

    def _link(
        self, columns: Mapping[str, Array], begins: Array, ends: Array, numbers: Array
    ) -> None:
        """Link new segments to the segments that they continue, by envs and steps."""
        steps, done = columns[STEP_COLUMN], columns["terminated"] | columns["truncated"]
        collectors, envs = columns[COLLECTOR_COLUMN][begins], columns[ENV_COLUMN][begins]
        keys = zip(collectors.tolist(), envs.tolist(), strict=True)
        starts, stops = steps[begins].tolist(), steps[ends - 1].tolist()
        ended = done[ends - 1].tolist()
        for number, env, start, stop, has_ended in zip(
            numbers.tolist(), keys, starts, stops, ended, strict=True
        ):
            previous, step = self._open.pop(env, (NO_SEGMENT, NO_SEGMENT))
            if previous >= self._first_segment and step + 1 == start:
                self._table[NEXT_SEGMENT, previous - self._first_segment] = number
                self._table[PREVIOUS_SEGMENT, number - self._first_segment] = previous
            if not has_ended:
                self._open[env] = (number, stop)

    def _reserve(self, segments: int) -> None:
        """Make space for more segments. The space of removed segments is freed."""
        if self._count + segments <= self._table.shape[1]:
            return
        longer = np.empty((4, 2 * (self._count + segments)), np.int64)
        longer[:, : self._count] = self._table[:, : self._count]
        self._table = longer

    def state_dict(self) -> dict[str, Any]:
        open_segments = [(*env, *segment) for env, segment in self._open.items()]
        return {
            "first": self._first_segment,
            "table": self._table[:, : self._count].copy(),
            "open": np.array(open_segments, np.int64).reshape(-1, 4),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first_segment, self._table = int(state["first"]), np.array(state["table"])
        self._count = self._table.shape[1]
        self._open = {(a, b): (c, d) for a, b, c, d in np.asarray(state["open"]).tolist()}
