"""Rows with priorities: a ring, what draws from it, and rows that leave before they are overwritten."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.proportional import Proportional
from flowrl.nodes.buffers.ranked import Ranked
from flowrl.nodes.buffers.ring import Ring

KINDS: Mapping[str, type[Proportional] | type[Ranked]] = {
    "proportional": Proportional,
    "rank": Ranked,
}
NOTES = {"train_iters": "int32", "env_steps": "int64", "use": "int32", "priority": "float32"}
NOTED_BYTES = sum(np.dtype(dtype).itemsize for dtype in NOTES.values())

ONE = np.int32(1)  # of the column's own dtype, else numpy adds ten times slower


class PrioritisedRows:
    """A new row has the highest priority that any row ever had."""

    def __init__(self, ring: Ring, kind: str, alpha: float) -> None:
        """The ring has these notes beside its rows."""
        self.ring = ring
        self.live = 0  # rows that can be drawn
        self.removed = 0  # rows that left before they were overwritten
        self._kind, self._alpha = kind, alpha
        self._highest = 1.0
        self._make()
        if ring.rows:
            self._adopt()

    def flush(self) -> None:
        """Where rows outlive the process: those that are held now will."""
        self.ring.flush()

    def close(self) -> None:
        """Let go of what the rows are kept in."""
        self.ring.close()

    def push(self, columns: Mapping[str, Array], train_iters: int, env_steps: int) -> None:
        """Write rows over the oldest."""
        oldest = self.ring.written - self.ring.rows
        notes = {"train_iters": train_iters, "env_steps": env_steps, "use": 0}
        parts = self.ring.push(columns, **notes, priority=self._highest)
        if self.priorities.size != self.ring.size:
            self._make()
        for part in parts:
            self.live += part.stop - part.start - self.priorities.count(part)
            self.priorities.fill(part, self._highest)
        self._left(oldest)

    def update(self, numbers: Array, priorities: Array) -> int:
        """Other priorities for the rows of these numbers; gives how many of them have left."""
        places = self.ring.places_of(numbers)
        here = self.ring.holds(numbers) & self.priorities.live(places)
        if not here.all():
            places, priorities = places[here], priorities[here]
        if len(places):
            self.priorities.set(places, priorities)
            self.ring.notes["priority"][places] = priorities
            self._highest = max(self._highest, float(priorities.max()))
        return len(numbers) - len(places)

    def in_order(self) -> dict[str, Array]:
        """All rows that can be drawn, the oldest first."""
        places = self.ring.held_places()
        return self.ring.take(places[self.priorities.live(places)])

    def use(self, places: Array, most: int | None) -> None:
        """These were drawn; those that were drawn `most` times leave."""
        use = self.ring.notes["use"]
        np.add.at(use, places, ONE)
        if most is not None:
            self._remove(places[use[places] >= most])

    def remove_older(self, train_iters: int) -> None:
        """Rows that came before this iteration leave."""
        if self.ring.rows:
            self._remove_first_below(self.ring.notes["train_iters"], train_iters)

    def remove_all_below(self, column: str, least: int) -> None:
        """Rows leave whose number in this column is less."""
        if self.ring.rows:
            places = np.flatnonzero(np.asarray(self.ring.columns[column])[: self.ring.rows] < least)
            self._remove(places[self.priorities.live(places)])

    def _remove_first_below(self, noted: Array, least: int) -> None:
        """Rows leave whose number here, which never falls from row to row, is less."""
        first, stop = self.ring.written - self.ring.rows, self.ring.written
        stay = bisect_left(
            range(first, stop), least, key=lambda n: int(noted[self.ring.place_of(n)])
        )
        places = self.ring.places_of(np.arange(first, first + stay))
        self._remove(places[self.priorities.live(places)])

    def clear(self) -> None:
        """Forget all rows."""
        self.ring.clear()
        self.priorities.clear()
        self.live = 0

    def state_dict(self) -> dict[str, Any]:
        """The rows, what is noted of them, and how they are drawn."""
        return {
            "ring": self.ring.state_dict(),
            "priorities": self.priorities.state_dict(self.ring.used),
            "counts": (self.live, self.removed),
            "highest": self._highest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.ring.load_state_dict(state["ring"])  # now the size is known, if bytes limit it
        if state["ring"]["columns"] and state["ring"]["size"] != self.ring.size:
            raise ValueError(
                f"the state is of a buffer of size {state['ring']['size']}; "
                f"this one's is {self.ring.size}"
            )
        self._make()
        self.priorities.load_state_dict(state["priorities"])
        self.live, self.removed = state["counts"]
        self._highest = float(state["highest"])

    def _left(self, oldest: int) -> None:
        """Rows that came after this one left before they were overwritten: frames ran out."""
        stay = self.ring.written - self.ring.rows
        first = max(oldest, self.ring.written - self.ring.size)
        if stay > first:
            places = self.ring.places_of(np.arange(first, stay))
            self._remove(places[self.priorities.live(places)])

    def _adopt(self) -> None:
        """Rows that were there before: as though they had just come."""
        places = self.ring.held_places()
        self.ring.notes["priority"][places] = self._highest
        self.priorities.set(places, np.full(len(places), self._highest))
        self.live = len(places)

    def _make(self) -> None:
        self.priorities = KINDS[self._kind](self.ring.size, self._alpha)

    def _remove(self, places: Array) -> None:
        places = np.unique(places)
        if len(places):
            self.priorities.remove(places)
            self.ring.forget(places)
            self.live -= len(places)
            self.removed += len(places)
