"""Rank-based priorities (Schaul et al. 2016, section 3.3): P(i) ~ (1 / rank(i))^alpha.

Ranks are exact at every draw: what changed is taken out of the order and merged in again, which
costs a copy of it. Of equal priorities the older place in the order comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.strata import masses


class Ranked:
    """Draws places; only those in the order have a row."""

    def __init__(self, size: int, alpha: float) -> None:
        self.size = size
        self._summed = (np.arange(1.0, size + 1) ** -alpha).cumsum()  # chances of ranks, to scale
        self._priorities = np.zeros(size)
        self._order = np.empty(0, np.int64)  # places, the highest priority first
        self._rank = np.full(size, -1)  # of each place, from 0; -1: none
        self._changed = np.zeros(size, bool)  # since the order was right
        self._gone = np.zeros(size, bool)

    def fill(self, places: slice, priority: float) -> None:
        """New rows, all with this priority."""
        self.set(np.arange(places.start, places.stop), priority)

    def set(self, places: Array, priorities: Array | float) -> None:
        """Rows that have other priorities now."""
        self._priorities[places] = priorities
        self._changed[places] = True
        self._gone[places] = False

    def remove(self, places: Array) -> None:
        """These are not drawn any more."""
        self._changed[places] = self._gone[places] = True

    def live(self, places: Array) -> Array:
        """Whether there is a row to draw."""
        return ((self._rank[places] >= 0) | self._changed[places]) & ~self._gone[places]

    def count(self, places: slice) -> int:
        """How many of these places have a row to draw."""
        return int(np.count_nonzero(self.live(np.arange(places.start, places.stop))))

    def draw(self, rng: np.random.Generator, batches: int, rows: int) -> tuple[Array, Array]:
        """Places (batches * rows,) and P(i) of each; a batch has a row of each of `rows` equal parts."""
        order = self._sorted()
        summed = self._summed[: len(order)]
        points = rng.random(batches * rows)
        ranks = summed.searchsorted(masses(points, rows, summed[-1]), side="right")
        return self._with_chances(order[np.minimum(ranks, len(order) - 1)])

    def draw_distinct(self, rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
        """Places (rows,) and P(i) of each, drawn one after another without replacement.

        The first of exponential arrivals, each at its place's rate (Efraimidis & Spirakis 2006).
        """
        order = self._sorted()
        rates = np.diff(self._summed[: len(order)], prepend=0.0)
        arrivals = rng.standard_exponential(len(order)) / rates
        first = np.argpartition(arrivals, rows - 1)[:rows]
        return self._with_chances(order[first[np.argsort(arrivals[first])]])

    def _with_chances(self, places: Array) -> tuple[Array, Array]:
        """P(i) beside each."""
        ranks = self._rank[places]
        before = np.where(ranks > 0, self._summed[ranks - 1], 0.0)
        return places, (self._summed[ranks] - before) / self._summed[len(self._order) - 1]

    def clear(self) -> None:
        """No row is there."""
        self._order = np.empty(0, np.int64)
        self._rank[:] = -1
        self._changed[:] = self._gone[:] = False

    def state_dict(self, rows: int) -> dict[str, Any]:
        """The places in their order, and the priorities of the first places."""
        return {"order": self._sorted().copy(), "priorities": self._priorities[:rows].copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """This order, and no other places."""
        self.clear()
        self._priorities[: len(state["priorities"])] = state["priorities"]
        self._order = np.array(state["order"])
        self._rank[self._order] = np.arange(len(self._order))

    def _sorted(self) -> Array:
        if not self._changed.any():
            return self._order
        stay = self._order[~self._changed[self._order]]
        moved = np.flatnonzero(self._changed & ~self._gone)
        moved = moved[np.argsort(-self._priorities[moved], kind="stable")]
        places = np.searchsorted(-self._priorities[stay], -self._priorities[moved], side="right")
        self._rank[self._order] = -1
        self._order = np.insert(stay, places, moved)
        self._rank[self._order] = np.arange(len(self._order))
        self._changed[:] = self._gone[:] = False
        return self._order
