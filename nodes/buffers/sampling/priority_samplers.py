"""The two samplers of prioritised experience replay (Schaul et al. 2016), and its importance weights.

Both draw places of a ring. The probability of a place without a row is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.sampling.sum_tree import SumTree, stratified_masses


class ProportionalSampler:
    """P(i) = p_i^alpha / sum_k p_k^alpha (section 3.3)."""

    def __init__(self, size: int, alpha: float) -> None:
        self.size, self.alpha = size, alpha
        self.tree = SumTree(size)

    @property
    def total_weight(self) -> float:
        """The sum of p_k^alpha."""
        return self.tree.total

    def fill(self, places: slice, priority: float) -> None:
        """Add rows at these places, all with one priority."""
        self.tree.fill(places.start, places.stop, priority**self.alpha)

    def set(self, places: Array, priorities: Array) -> None:
        """Set the priorities of rows."""
        self.tree.set(places, priorities**self.alpha)

    def remove(self, places: Array) -> None:
        """Exclude these places until rows are added there."""
        self.tree.set(places, 0.0)

    def live(self, places: Array) -> Array:
        """Return which of these places have a row."""
        return self.tree.weights[places] > 0

    def count(self, places: slice) -> int:
        """Count the places that have a row."""
        return int(np.count_nonzero(self.tree.weights[places]))

    def draw(self, rng: np.random.Generator, batches: int, rows: int) -> tuple[Array, Array]:
        """Draw places (batches * rows,), and return P(i) of each. Each batch has one from each of `rows` strata."""
        return self.tree.draw(rng, batches, rows)

    def draw_distinct(self, rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
        """Draw places (rows,) one after another without replacement, and return P(i) of each.

        Repeated draws of a place are dropped, and the missing ones are drawn from the other places alone. This gives
        the same distribution, and terminates.
        """
        taken, weights = np.empty(0, np.int64), np.empty(0)
        while len(taken) < rows:
            drawn = self.tree.find(rng.random(rows - len(taken)) * self.tree.total)
            _, first = np.unique(drawn, return_index=True)
            new = drawn[np.sort(first)]
            taken, weights = np.append(taken, new), np.append(weights, self.tree.weights[new])
            self.tree.set(new, 0.0)
        self.tree.set(taken, weights)
        return taken, weights / self.tree.total

    def clear(self) -> None:
        self.tree.load(np.empty(0))

    def state_dict(self, places: int) -> dict[str, Any]:
        """Return the weights of the first `places` places."""
        return {"weights": self.tree.weights[:places].copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.tree.load(state["weights"])


class RankSampler:
    """P(i) ~ (1 / rank(i))^alpha (section 3.3).

    Ranks are exact at every draw. Places whose priority changed are taken out of the order and merged into it
    again, which costs a copy of the order. Places with equal priorities keep their order.
    """

    def __init__(self, size: int, alpha: float) -> None:
        self.size = size
        self._cumulative = (np.arange(1.0, size + 1) ** -alpha).cumsum()  # of the ranks, unscaled
        self._priorities = np.zeros(size)
        self._order = np.empty(0, np.int64)  # places, the highest priority first
        self._rank = np.full(size, -1)  # of each place, from 0; -1 without a row
        self._changed = np.zeros(size, bool)  # places whose rank is out of date
        self._removed = np.zeros(size, bool)  # changed places that lost their row

    @property
    def total_weight(self) -> float:
        """The sum of (1 / rank)^alpha."""
        order = self._current_order()
        return float(self._cumulative[len(order) - 1]) if len(order) else 0.0

    def fill(self, places: slice, priority: float) -> None:
        """Add rows at these places, all with one priority."""
        self.set(np.arange(places.start, places.stop), priority)

    def set(self, places: Array, priorities: Array | float) -> None:
        """Set the priorities of rows."""
        self._priorities[places] = priorities
        self._changed[places] = True
        self._removed[places] = False

    def remove(self, places: Array) -> None:
        """Exclude these places until rows are added there."""
        self._changed[places] = self._removed[places] = True

    def live(self, places: Array) -> Array:
        """Return which of these places have a row."""
        return ((self._rank[places] >= 0) | self._changed[places]) & ~self._removed[places]

    def count(self, places: slice) -> int:
        """Count the places that have a row."""
        return int(np.count_nonzero(self.live(np.arange(places.start, places.stop))))

    def draw(self, rng: np.random.Generator, batches: int, rows: int) -> tuple[Array, Array]:
        """Draw places (batches * rows,), and return P(i) of each. Each batch has one from each of `rows` strata."""
        order = self._current_order()
        cumulative = self._cumulative[: len(order)]
        masses = stratified_masses(rng.random(batches * rows), rows, cumulative[-1])
        ranks = cumulative.searchsorted(masses, side="right")
        return self._with_probabilities(order[np.minimum(ranks, len(order) - 1)])

    def draw_distinct(self, rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
        """Draw places (rows,) one after another without replacement, and return P(i) of each.

        These are the first of exponential arrivals, each at its place's rate (Efraimidis & Spirakis 2006).
        """
        order = self._current_order()
        rates = np.diff(self._cumulative[: len(order)], prepend=0.0)
        arrivals = rng.standard_exponential(len(order)) / rates
        first = np.argpartition(arrivals, rows - 1)[:rows]
        return self._with_probabilities(order[first[np.argsort(arrivals[first])]])

    def _with_probabilities(self, places: Array) -> tuple[Array, Array]:
        ranks = self._rank[places]
        before = np.where(ranks > 0, self._cumulative[ranks - 1], 0.0)
        return places, (self._cumulative[ranks] - before) / self._cumulative[len(self._order) - 1]

    def clear(self) -> None:
        self._order = np.empty(0, np.int64)
        self._rank[:] = -1
        self._changed[:] = self._removed[:] = False

    def state_dict(self, places: int) -> dict[str, Any]:
        """Return the order, and the priorities of the first `places` places."""
        return {
            "order": self._current_order().copy(),
            "priorities": self._priorities[:places].copy(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        self._priorities[: len(state["priorities"])] = state["priorities"]
        self._order = np.array(state["order"])
        self._rank[self._order] = np.arange(len(self._order))

    def _current_order(self) -> Array:
        """Merge all changes into the order, and return it."""
        if not self._changed.any():
            return self._order
        unchanged = self._order[~self._changed[self._order]]
        moved = np.flatnonzero(self._changed & ~self._removed)
        moved = moved[np.argsort(-self._priorities[moved], kind="stable")]
        positions = np.searchsorted(
            -self._priorities[unchanged], -self._priorities[moved], side="right"
        )
        self._rank[self._order] = -1
        self._order = np.insert(unchanged, positions, moved)
        self._rank[self._order] = np.arange(len(self._order))
        self._changed[:] = self._removed[:] = False
        return self._order


def importance_weights(frequency: Array, beta: float, rows: int) -> Array:
    """w_i = (N P(i))^-beta / max_j w_j, with the maximum over each batch of `rows` (section 3.4), (n,) float32.

    `frequency` is N P(i): how often a row is drawn, relative to uniform draws.
    """
    weights: Array = (frequency**-beta).reshape(-1, rows)
    weights /= weights.max(1, keepdims=True)
    return weights.reshape(-1).astype(np.float32)
