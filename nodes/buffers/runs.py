"""Which of the rows that are held follow each other: runs of rows, and how runs go on in later tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.ring import Ring
from flowrl.nodes.buffers.windows import segments
from flowrl.nodes.origin import COLLECTOR, ENV, ORIGIN, STEP

NONE = -1


def found_again(ring: Ring) -> tuple[dict[str, Array], int]:
    """What runs are made of, of rows that an earlier process has left; and the number of the first."""
    held = np.arange(ring.written - ring.rows, ring.written)
    names = {"last", "terminated", "truncated", *ORIGIN} & set(ring.columns)
    return ring.take(ring.places_of(held), names), int(held[0])


class Runs:
    """Rows are known by their numbers, runs by theirs: both are counted as they come.

    Within a run each row follows the one before; `last` ends a run. Where rows say which env they
    are of and which of its steps they are, a run whose episode goes on in a later token is linked
    to the run that holds what follows.
    """

    def __init__(self) -> None:
        self._first = 0  # the number of the oldest run that is held
        self._held = np.empty((4, 0), np.int64)  # begins, ends, next and previous runs
        self._count = 0
        self._open: dict[tuple[int, int], tuple[int, int]] = {}  # env: its run, and the last step

    def push(self, columns: Mapping[str, Array], first: int) -> Array:
        """The runs of rows, of which the first has this number; gives the numbers of the runs."""
        begins, ends = segments(columns["last"])
        numbers = self._first + self._count + np.arange(len(begins))
        self._make_room(len(begins))
        new = self._held[:, self._count : self._count + len(begins)]
        new[0], new[1], new[2:] = begins + first, ends + first - 1, NONE
        self._count += len(begins)
        if ENV in columns:
            self._link(columns, begins, ends, numbers)
        return numbers

    def forget(self, oldest: int) -> None:
        """Rows before this one have left."""
        gone = int(np.searchsorted(self._held[1, : self._count], oldest))
        self._first += gone
        self._count -= gone
        self._held = self._held[:, gone:]
        if self._count:
            self._held[0, 0] = max(self._held[0, 0], oldest)

    def clear(self) -> None:
        """No row is held, nor followed by what comes."""
        self._first += self._count
        self._count = 0
        self._held = self._held[:, :0]
        self._open.clear()

    def of(self, rows: Array) -> Array:
        """The runs of rows."""
        return self._first + np.searchsorted(self._held[1, : self._count], rows)

    def begins(self, runs: Array) -> Array:
        """Their first rows that are held."""
        return self._column(0, runs)

    def ends(self, runs: Array) -> Array:
        """Their last rows."""
        return self._column(1, runs)

    def next(self, runs: Array) -> Array:
        """The runs that they go on in, or -1."""
        return self._column(2, runs)

    def previous(self, runs: Array) -> Array:
        """The runs that went on in them, or -1 where none is held."""
        found = self._column(3, runs)
        return np.where(found < self._first, NONE, found)

    def follow(self, rows: Array, steps: int) -> tuple[Array, Array]:
        """Rows (W,) and those that follow, (W, steps), and which there are; else the last is repeated."""
        found = np.empty((len(rows), steps), np.int64)
        there = np.ones((len(rows), steps), bool)
        row, run = rows, self.of(rows)
        end = self.ends(run)
        for k in range(steps):
            found[:, k] = row
            if k + 1 == steps:
                break
            run, row, goes_on = self._step(run, row, end)
            end = self.ends(run)
            there[:, k + 1] = there[:, k] & goes_on
        return found, there

    def ahead(self, rows: Array) -> Array:
        """How many rows of its episode follow each."""
        run = self.of(rows)
        return self.ends(run) - rows + self._beyond(run, self.next)

    def behind(self, rows: Array) -> Array:
        """How many rows of its episode that are held come before each."""
        run = self.of(rows)
        return rows - self.begins(run) + self._beyond(run, self.previous)

    def away(self, rows: Array, steps: Array) -> Array:
        """The rows so many steps later, or where it is negative, before; they are there."""
        run, row = self.of(rows), rows + steps
        while True:
            late, early = row > self.ends(run), row < self.begins(run)
            if not (late | early).any():
                return row
            after = np.where(late, self.next(run), run)
            before = np.where(early, self.previous(run), run)
            over = row - self.ends(run) - 1
            under = self.begins(run) - row - 1
            row = np.where(late, self.begins(after) + over, row)
            row = np.where(early, self.ends(before) - under, row)
            run = np.where(late, after, before)

    def _beyond(self, runs: Array, other: Any) -> Array:
        """The rows of the runs that lie beyond these, one after another."""
        found, runs = np.zeros(len(runs), np.int64), other(runs)
        while (more := runs != NONE).any():
            there = runs[more]
            found[more] += self.ends(there) - self.begins(there) + 1
            runs = runs.copy()
            runs[more] = other(there)
        return found

    def _step(self, run: Array, row: Array, end: Array) -> tuple[Array, Array, Array]:
        """The next row of each, or itself where there is none; and whether there is one."""
        over = row == end
        if not over.any():
            return run, row + 1, np.True_  # type: ignore[return-value]
        after = np.where(over, self.next(run), run)
        goes_on = after != NONE
        after = np.where(goes_on, after, run)
        behind = np.where(over, self.begins(after), row + 1)
        return after, np.where(goes_on, behind, row), goes_on

    def _column(self, of: int, runs: Array) -> Array:
        return self._held[of].take(runs - self._first, mode="clip")

    def _link(
        self, columns: Mapping[str, Array], begins: Array, ends: Array, numbers: Array
    ) -> None:
        """What a run goes on in is found by its env and the step of it."""
        steps, done = columns[STEP], columns["terminated"] | columns["truncated"]
        envs = zip(columns[COLLECTOR][begins].tolist(), columns[ENV][begins].tolist(), strict=True)
        starts, stops = steps[begins].tolist(), steps[ends - 1].tolist()
        over = done[ends - 1].tolist()
        for number, env, start, stop, ended in zip(
            numbers.tolist(), envs, starts, stops, over, strict=True
        ):
            before, at = self._open.pop(env, (NONE, NONE))
            if before >= self._first and at + 1 == start:
                self._held[2, before - self._first] = number
                self._held[3, number - self._first] = before
            if not ended:
                self._open[env] = (number, stop)

    def _make_room(self, runs: int) -> None:
        """Space for some more; what was forgotten is given back."""
        if self._count + runs <= self._held.shape[1]:
            return
        longer = np.empty((4, 2 * (self._count + runs)), np.int64)
        longer[:, : self._count] = self._held[:, : self._count]
        self._held = longer

    def state_dict(self) -> dict[str, Any]:
        """All runs."""
        open_runs = [(*env, *at) for env, at in self._open.items()]
        return {
            "first": self._first,
            "held": self._held[:, : self._count].copy(),
            "open": np.array(open_runs, np.int64).reshape(-1, 4),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """These runs."""
        self._first, self._held = int(state["first"]), np.array(state["held"])
        self._count = self._held.shape[1]
        self._open = {(a, b): (c, d) for a, b, c, d in np.asarray(state["open"]).tolist()}
