"""Proportional priorities (Schaul et al. 2016, section 3.3): P(i) = p_i^alpha / sum_k p_k^alpha."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.sum_tree import SumTree


class Proportional:
    """Draws places; a place without a row has no weight."""

    def __init__(self, size: int, alpha: float) -> None:
        self.size, self.alpha = size, alpha
        self.tree = SumTree(size)

    def fill(self, places: slice, priority: float) -> None:
        """New rows, all with this priority."""
        self.tree.fill(places.start, places.stop, priority**self.alpha)

    def set(self, places: Array, priorities: Array) -> None:
        """Rows that have other priorities now."""
        self.tree.set(places, priorities**self.alpha)

    def remove(self, places: Array) -> None:
        """These are not drawn any more."""
        self.tree.set(places, 0.0)

    def live(self, places: Array) -> Array:
        """Whether there is a row to draw."""
        return self.tree.weights[places] > 0

    def count(self, places: slice) -> int:
        """How many of these places have a row to draw."""
        return int(np.count_nonzero(self.tree.weights[places]))

    def draw(self, rng: np.random.Generator, batches: int, rows: int) -> tuple[Array, Array]:
        """Places (batches * rows,) and P(i) of each; a batch has a row of each of `rows` equal parts."""
        return self.tree.draw(rng, batches, rows)

    def draw_distinct(self, rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
        """Places (rows,) and P(i) of each, drawn one after another without replacement.

        A draw of a place that was drawn before is left out; what is missing is then drawn from the
        others alone, which is the same distribution, and ends.
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
        """No row is there."""
        self.tree.load(np.empty(0))

    def state_dict(self, rows: int) -> dict[str, Any]:
        """The weights of the first places."""
        return {"weights": self.tree.weights[:rows].copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """These weights, and no others."""
        self.tree.load(state["weights"])
