"""A sum tree: draws places with probabilities proportional to their weights, stratified over each batch.

Every node has eight children, which fill one cache line. A draw touches one line on each level, and a million
places take seven levels. A sum is always computed from its children, added from the left: rounding errors do
not accumulate, and numpy and the compiled kernels compute the same bits.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType

import numpy as np

from flowrl.core.batch import Array

FAN = 8
BELOW_ONE = 1 - 2.0**-53  # a number times this is one of the next two smaller numbers
# The number of places from which compiled kernels are used; loading them takes time.
COMPILED_FROM = 1 << 15
GOLDEN_RATIO = (5**0.5 - 1) / 2


class SumTree:
    """Weights of `size` places, initially 0."""

    def __init__(self, size: int, compiled: bool | None = None) -> None:
        """`compiled` selects the kernels or numpy, for tests. Both give the same results."""
        starts, width = [], size
        lengths = []
        while True:
            lengths.append(-(-width // FAN) * FAN)
            if width <= FAN:
                break
            width = lengths[-1] // FAN
        starts = [0, *np.cumsum(lengths).tolist()]
        self.size = size
        self._starts = np.array(starts[:-1], np.int64)  # of each level, the leaves first
        self._nodes = aligned_zeros(starts[-1])
        use_kernels = size >= COMPILED_FROM if compiled is None else compiled
        self._kernels = load_kernels() if use_kernels else None

    @property
    def weights(self) -> Array:
        """The weights. Do not write to them."""
        return self._nodes[: self.size]

    @property
    def total(self) -> float:
        """The sum of all weights, added in the same order as in `find`."""
        return float(self._nodes[self._starts[-1] :].cumsum()[-1])

    def set(self, places: Array, weights: Array | float) -> None:
        """Set the weights of places. If a place occurs twice, its last weight is used."""
        if self._kernels is not None:
            values = np.empty(len(places))
            values[:] = weights
            self._kernels.set_weights(self._nodes, self._starts, places, values)
            return
        self._nodes[places] = weights
        for level in range(len(self._starts) - 1):
            places = places // FAN
            self._update_sums(level, places)

    def fill(self, start: int, stop: int, weight: float) -> None:
        """Set one weight for all places from `start` to before `stop`."""
        if self._kernels is not None:
            self._kernels.fill_weights(self._nodes, self._starts, start, stop, weight)
            return
        self._nodes[start:stop] = weight
        for level in range(len(self._starts) - 1):
            start, stop = start // FAN, -(-stop // FAN)
            self._update_sums(level, slice(start, stop))

    def find(self, masses: Array) -> Array:
        """Find the places (n,) at these masses, in [0, total), of the cumulative sum of all weights.

        A place with weight 0 is never found.
        """
        if self._kernels is not None:
            found = np.empty(len(masses), np.int64)
            self._kernels.find_places(self._nodes, self._starts, masses.copy(), found)
            return found
        places = np.zeros(len(masses), np.int64)
        masses = masses.copy()
        rows = np.arange(len(masses))
        for start in self._starts[::-1]:
            first = places * FAN
            sums = self._nodes[start + first[:, None] + np.arange(FAN)].cumsum(1)
            # Rounding errors must not select a child beyond the last one with a weight.
            masses = np.minimum(masses, sums[:, -1] * BELOW_ONE)
            child = (sums[:, :-1] <= masses[:, None]).sum(1)
            masses -= np.where(child > 0, sums[rows, child - 1], 0.0)
            places = first + child
        return places

    def draw(self, rng: np.random.Generator, batches: int, rows: int) -> tuple[Array, Array]:
        """Draw places (batches * rows,), one from each of `rows` strata in each batch; return their probabilities."""
        total, points = self.total, rng.random(batches * rows)
        if self._kernels is None:
            places = self.find(stratified_masses(points, rows, total))
            return places, self.weights[places] / total
        places, weights = np.empty(len(points), np.int64), np.empty(len(points))
        order, stratum = stratum_order(rows), total / max(rows, 1)
        self._kernels.draw_places(
            self._nodes, self._starts, points, order, stratum, places, weights
        )
        return places, weights / total

    def load(self, weights: Array) -> None:
        """Set the weights of the first places, and 0 for all others."""
        self._nodes[: self.size] = 0
        self._nodes[: len(weights)] = weights
        for level in range(len(self._starts) - 1):
            self._update_sums(level, slice(None))

    def _update_sums(self, level: int, parents: Array | slice) -> None:
        start, stop = self._starts[level], self._starts[level + 1]
        children = self._nodes[start:stop].reshape(-1, FAN)
        above = self._nodes[stop : stop + len(children)]
        above[parents] = children[parents].cumsum(1)[:, -1]


def stratified_masses(points: Array, rows: int, total: float) -> Array:
    """Map points of [0, 1) to [0, total), so that each batch of `rows` has one in each stratum of equal mass."""
    masses: Array = stratum_order(rows) + points.reshape(-1, rows) if rows else points
    return (masses * (total / max(rows, 1))).reshape(-1)


@functools.lru_cache(maxsize=16)
def stratum_order(rows: int) -> Array:
    """Return the order of the strata within a batch: a permutation, so that any slice of a batch has rows of all ages.

    In ascending order, a batch would be sorted by place, and therefore by age.
    """
    order = np.argsort((np.arange(rows) * GOLDEN_RATIO) % 1.0, kind="stable").astype(np.float64)
    order.flags.writeable = False
    return order


def aligned_zeros(length: int) -> Array:
    """Allocate zeros. Groups of eight are aligned to cache lines."""
    raw = np.zeros(length + FAN, np.float64)
    skip = -(raw.ctypes.data // 8) % FAN
    return raw[skip : skip + length]


@functools.cache
def load_kernels() -> ModuleType | None:
    """Import the compiled kernels; return None if numba is not installed (`flowrl[fast]`)."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("flowrl.nodes.buffers.sampling.sum_tree_kernels")
