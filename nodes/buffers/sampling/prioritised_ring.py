"""A ring whose rows have priorities, and can be removed before they are overwritten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.nodes.buffers.sampling.priority_samplers import (
    ProportionalSampler,
    RankSampler,
)
from flowrl.nodes.buffers.storage.ring import PUSHED_METADATA, Ring

SAMPLERS: Mapping[str, type[ProportionalSampler] | type[RankSampler]] = {
    "proportional": ProportionalSampler,
    "rank": RankSampler,
}
ROW_METADATA = {"train_iters": "int32", "env_steps": "int64", "use": "int32", "priority": "float32"}
ROW_METADATA_BYTES = sum(np.dtype(dtype).itemsize for dtype in ROW_METADATA.values())
PUSHED_METADATA_BYTES = sum(np.dtype(ROW_METADATA[name]).itemsize for name in PUSHED_METADATA)
SAMPLER_BYTES = 10  # for each row: its weight, and its share of the sums above it
# The columns that `PrioritisedRing.bookkeeping` returns.
BOOKKEEPING: Schema = {
    "row_id": Column("int64"),
    "priority": Column("float32"),
    "use": Column("int32"),
    "age_iters": Column("int32"),
    "pushed_steps": Column("int64"),
}

ONE = np.int32(1)  # of the dtype of "use": numpy adds a Python int ten times slower


class PrioritisedRing(Ring):
    """Keeps rows with priorities. A new row gets the highest priority that any row ever had."""

    def __init__(
        self,
        sampler: str,
        alpha: float,
        size: int,
        *,
        metadata: Mapping[str, str] | None = None,
        **storage: Any,
    ) -> None:
        """`storage` are the other parameters of a ring."""
        super().__init__(size, metadata={**ROW_METADATA, **(metadata or {})}, **storage)
        self.live = 0  # rows that can be drawn
        self.withheld = np.empty(0, np.int64)  # the numbers of rows that cannot be drawn yet
        self.removed = 0  # rows that were removed before they were overwritten
        self._sampler_kind, self._alpha = sampler, alpha
        self._highest = 1.0
        self._make_sampler()
        if self.row_count:
            self._add_recovered_rows()

    def push(self, columns: Mapping[str, Array], **metadata: float | Array) -> list[slice]:
        """Write rows over the oldest. `metadata` are their `train_iters` (of the weights that collected them) and the
        `env_steps` at which they arrived.
        """
        oldest = self.oldest
        parts = super().push(columns, **metadata, use=0, priority=self._highest)
        if self.sampler.size != self.size:
            self._make_sampler()
        for part in parts:
            self.live += part.stop - part.start - self.sampler.count(part)
            self.sampler.fill(part, self._highest)
        self._remove_evicted(oldest)
        return parts

    def withhold(self, numbers: Array) -> None:
        """Let these rows, and no others, wait until they can be drawn. Then they get the highest priority so far.

        The numbers are in ascending order.
        """
        before, self.withheld = self.withheld, numbers
        released = before[~_contains(numbers, before) & (before >= self.oldest)]
        if len(released):
            places = self.places_of(released)
            self.sampler.set(places, np.full(len(places), self._highest))
            self.metadata["priority"][places] = self._highest
            self.live += len(places)
        withheld = numbers[~_contains(before, numbers)]
        if len(withheld):
            self.sampler.remove(self.places_of(withheld))
            self.live -= len(withheld)

    def draw(
        self, rng: np.random.Generator, batches: int, rows: int, replace: bool
    ) -> tuple[Array, Array]:
        """Draw `rows` live rows for each batch; return their places, and how often each is drawn, relative to
        uniform draws (batches * rows,).
        """
        if replace:
            places, probability = self.sampler.draw(rng, batches, rows)
        else:
            drawn = [self.sampler.draw_distinct(rng, rows) for _ in range(batches)]
            places, probability = (np.concatenate(part) for part in zip(*drawn, strict=True))
        return places, probability * self.live

    def update(self, numbers: Array, priorities: Array) -> int:
        """Set the priorities of rows by their numbers; return how many of these rows no longer exist."""
        places = self.places_of(numbers)
        live = self.holds(numbers) & self.sampler.live(places)
        if not live.all():
            places, priorities = places[live], priorities[live]
        if len(places):
            self.sampler.set(places, priorities)
            self.metadata["priority"][places] = priorities
            self._highest = max(self._highest, float(priorities.max()))
        return len(numbers) - len(places)

    def bookkeeping(self, places: Array, train_iters: int) -> dict[str, Array]:
        """Return number, priority, use, age and arrival of the rows at these places."""
        age = train_iters - self.metadata["train_iters"][places]
        return {
            "row_id": self.numbers_of(places),
            "priority": self.metadata["priority"][places],
            "use": self.metadata["use"][places],
            "age_iters": age.astype(np.int32),
            "pushed_steps": self.metadata["env_steps"][places],
        }

    def measured(self, places: Array, train_iters: int) -> dict[str, Array]:
        """Return how often the rows at these places were used, their priorities and their ages."""
        found = self.bookkeeping(places, train_iters)
        return {name: found[name] for name in ("use", "priority", "age_iters")}

    def in_order(self) -> dict[str, Array]:
        """Return all rows that were not removed, the oldest first."""
        places = self.held_places()
        kept = self.sampler.live(places)
        kept[self.withheld - self.oldest] = True
        return self.take(places[kept])

    def count_use(self, places: Array, max_use: int | None) -> None:
        """Count a draw of these rows, and remove those that were drawn `max_use` times."""
        use = self.metadata["use"]
        np.add.at(use, places, ONE)
        if max_use is not None:
            self._remove(places[use[places] >= max_use])

    def remove_older(self, train_iters: int) -> None:
        """Remove the rows that older weights than those of this train iteration collected.

        Several collectors may have weights of different ages, so rows need not be in the order of these.
        """
        collected = self.metadata["train_iters"][: self.used_places]
        places = np.flatnonzero(collected < train_iters)
        places = places[self.holds(self.numbers_of(places))]
        self._remove(places[self.sampler.live(places)])

    def remove_all_below(self, column: str, least: int) -> None:
        """Remove the rows whose value in this column is smaller than `least`."""
        if self.row_count:
            values = np.asarray(self.columns[column])[: self.row_count]
            places = np.flatnonzero(values < least)
            self._remove(places[self.sampler.live(places)])

    def clear(self) -> None:
        super().clear()
        self.sampler.clear()
        self.live, self.withheld = 0, self.withheld[:0]

    def state_dict(self, live: bool = False) -> dict[str, Any]:
        return {
            "ring": super().state_dict(live),
            "priorities": self.sampler.state_dict(self.used_places),
            "counts": (self.live, self.removed),
            "withheld": self.withheld,
            "highest": self._highest,
        }

    def load_state_dict(self, state: Mapping[str, Any], may_keep: bool = False) -> None:
        super().load_state_dict(state["ring"], may_keep)  # now the size is known, if bytes limit it
        if state["ring"]["columns"] and state["ring"]["size"] != self.size:
            raise ValueError(
                f"the state is of a buffer of size {state['ring']['size']}; "
                f"this buffer's size is {self.size}"
            )
        self._make_sampler()
        self.sampler.load_state_dict(state["priorities"])
        self.live, self.removed = state["counts"]
        self.withheld = np.array(state["withheld"])
        self._highest = float(state["highest"])

    def _remove_evicted(self, oldest: int) -> None:
        """Remove rows that the ring evicted before they were overwritten, because the frame pool was full."""
        first = max(oldest, self.written - self.size)
        if self.oldest > first:
            places = self.places_of(np.arange(first, self.oldest))
            self._remove(places[self.sampler.live(places)])

    def _add_recovered_rows(self) -> None:
        """Treat rows of an earlier process as if they had just arrived."""
        places = self.held_places()
        self.metadata["priority"][places] = self._highest
        self.sampler.set(places, np.full(len(places), self._highest))
        self.live = len(places)

    def _make_sampler(self) -> None:
        self.sampler = SAMPLERS[self._sampler_kind](self.size, self._alpha)

    def _remove(self, places: Array) -> None:
        places = np.unique(places)
        if len(places):
            self.sampler.remove(places)
            self.discard(places)
            self.live -= len(places)
            self.removed += len(places)


def _contains(ascending: Array, numbers: Array) -> Array:
    """Return which numbers are among those in ascending order; faster than `np.isin` for few numbers."""
    if not len(ascending):
        return np.zeros(len(numbers), bool)
    places = ascending.searchsorted(numbers)
    found: Array = ascending.take(places, mode="clip") == numbers
    return found
