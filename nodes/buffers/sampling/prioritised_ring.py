"""A ring whose rows have priorities, and can be removed before they are overwritten."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.sampling.priority_samplers import ProportionalSampler, RankSampler
from flowrl.nodes.buffers.storage.ring import Ring

SAMPLERS: Mapping[str, type[ProportionalSampler] | type[RankSampler]] = {
    "proportional": ProportionalSampler,
    "rank": RankSampler,
}
ROW_METADATA = {"train_iters": "int32", "env_steps": "int64", "use": "int32", "priority": "float32"}
ROW_METADATA_BYTES = sum(np.dtype(dtype).itemsize for dtype in ROW_METADATA.values())
SAMPLER_BYTES = 10  # of a row: its weight, and its share of the sums above

ONE = np.int32(1)  # of the dtype of "use": numpy adds a Python int ten times slower


class PrioritisedRing:
    """Rows with priorities. A new row has the highest priority that any row ever had."""

    def __init__(self, ring: Ring, sampler: str, alpha: float) -> None:
        """The ring must have `ROW_METADATA`."""
        self.ring = ring
        self.live = 0  # rows that can be drawn
        self.removed = 0  # rows that were removed before they were overwritten
        self._sampler_kind, self._alpha = sampler, alpha
        self._highest = 1.0
        self._make_sampler()
        if ring.row_count:
            self._add_recovered_rows()

    def flush(self) -> None:
        """Make the rows durable, where the storage is persistent."""
        self.ring.flush()

    def close(self) -> None:
        self.ring.close()

    def push(self, columns: Mapping[str, Array], train_iters: int, env_steps: int) -> None:
        """Write rows over the oldest."""
        oldest = self.ring.oldest
        metadata = {"train_iters": train_iters, "env_steps": env_steps, "use": 0}
        parts = self.ring.push(columns, **metadata, priority=self._highest)
        if self.sampler.size != self.ring.size:
            self._make_sampler()
        for part in parts:
            self.live += part.stop - part.start - self.sampler.count(part)
            self.sampler.fill(part, self._highest)
        self._remove_evicted(oldest)

    def update(self, numbers: Array, priorities: Array) -> int:
        """Set the priorities of rows by their numbers; returns how many of these rows are gone."""
        places = self.ring.places_of(numbers)
        live = self.ring.holds(numbers) & self.sampler.live(places)
        if not live.all():
            places, priorities = places[live], priorities[live]
        if len(places):
            self.sampler.set(places, priorities)
            self.ring.metadata["priority"][places] = priorities
            self._highest = max(self._highest, float(priorities.max()))
        return len(numbers) - len(places)

    def in_order(self) -> dict[str, Array]:
        """All rows that can be drawn, the oldest first."""
        places = self.ring.held_places()
        return self.ring.take(places[self.sampler.live(places)])

    def count_use(self, places: Array, max_use: int | None) -> None:
        """Count a draw of these rows, and remove those that were drawn `max_use` times."""
        use = self.ring.metadata["use"]
        np.add.at(use, places, ONE)
        if max_use is not None:
            self._remove(places[use[places] >= max_use])

    def remove_older(self, train_iters: int) -> None:
        """Remove the rows that arrived before this train iteration."""
        if not self.ring.row_count:
            return
        # Arrival times never decrease from row to row, so the rows to remove are the oldest ones.
        arrived, ring = self.ring.metadata["train_iters"], self.ring
        first = ring.oldest
        expired = bisect_left(
            range(first, ring.written), train_iters, key=lambda n: int(arrived[ring.place_of(n)])
        )
        places = ring.places_of(np.arange(first, first + expired))
        self._remove(places[self.sampler.live(places)])

    def remove_all_below(self, column: str, least: int) -> None:
        """Remove the rows whose value in this column is smaller than `least`."""
        if self.ring.row_count:
            values = np.asarray(self.ring.columns[column])[: self.ring.row_count]
            places = np.flatnonzero(values < least)
            self._remove(places[self.sampler.live(places)])

    def clear(self) -> None:
        """Forget all rows."""
        self.ring.clear()
        self.sampler.clear()
        self.live = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "ring": self.ring.state_dict(),
            "priorities": self.sampler.state_dict(self.ring.used_places),
            "counts": (self.live, self.removed),
            "highest": self._highest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.ring.load_state_dict(state["ring"])  # now the size is known, if bytes limit it
        if state["ring"]["columns"] and state["ring"]["size"] != self.ring.size:
            raise ValueError(
                f"the state is of a buffer of size {state['ring']['size']}; "
                f"this one's is {self.ring.size}"
            )
        self._make_sampler()
        self.sampler.load_state_dict(state["priorities"])
        self.live, self.removed = state["counts"]
        self._highest = float(state["highest"])

    def _remove_evicted(self, oldest: int) -> None:
        """Remove rows that the ring evicted before they were overwritten: the frame pool was full."""
        first = max(oldest, self.ring.written - self.ring.size)
        if self.ring.oldest > first:
            places = self.ring.places_of(np.arange(first, self.ring.oldest))
            self._remove(places[self.sampler.live(places)])

    def _add_recovered_rows(self) -> None:
        """Treat rows of an earlier process as if they had just arrived."""
        places = self.ring.held_places()
        self.ring.metadata["priority"][places] = self._highest
        self.sampler.set(places, np.full(len(places), self._highest))
        self.live = len(places)

    def _make_sampler(self) -> None:
        self.sampler = SAMPLERS[self._sampler_kind](self.ring.size, self._alpha)

    def _remove(self, places: Array) -> None:
        places = np.unique(places)
        if len(places):
            self.sampler.remove(places)
            self.ring.discard(places)
            self.live -= len(places)
            self.removed += len(places)
