"""A sum tree: draws places with a probability proportional to their weights.

Every node has eight children, which is one line of a processor's cache: a draw touches one line a
level, and a million places take seven levels. Sums are always those of the children, added from
the left, so nothing drifts, and numpy and the compiled kernels give the same bits.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.buffers.strata import masses, order

FAN = 8
BELOW = 1 - 2.0**-53  # times a number: the next one below it, or one further
COMPILED_FROM = 1 << 15  # places from which loading the compiler pays


class SumTree:
    """Weights of `size` places, zero at first."""

    def __init__(self, size: int, compiled: bool | None = None) -> None:
        """`compiled` decides what works it, where that is to be tested; it cannot be seen."""
        starts, width = [], size
        lengths = []
        while True:
            lengths.append(-(-width // FAN) * FAN)
            if width <= FAN:
                break
            width = lengths[-1] // FAN
        starts = [0, *np.cumsum(lengths).tolist()]
        self.size = size
        self._starts = np.array(starts[:-1], np.int64)  # of each level; leaves are the first
        self._nodes = aligned_zeros(starts[-1])
        wanted = size >= COMPILED_FROM if compiled is None else compiled
        self._fast = kernels() if wanted else None

    @property
    def weights(self) -> Array:
        """The weights (do not write to them)."""
        return self._nodes[: self.size]

    @property
    def total(self) -> float:
        """The sum of all weights, as the draws see it."""
        return float(self._nodes[self._starts[-1] :].cumsum()[-1])

    def set(self, places: Array, weights: Array | float) -> None:
        """Give weights to places; of a place that is named twice the last one counts."""
        if self._fast is not None:
            given = np.empty(len(places))
            given[:] = weights
            self._fast.set_weights(self._nodes, self._starts, places, given)
            return
        self._nodes[places] = weights
        for level in range(len(self._starts) - 1):
            places = places // FAN
            self._sum(level, places)

    def fill(self, start: int, stop: int, weight: float) -> None:
        """The same weight to all places from `start` to before `stop`."""
        if self._fast is not None:
            self._fast.fill_weights(self._nodes, self._starts, start, stop, weight)
            return
        self._nodes[start:stop] = weight
        for level in range(len(self._starts) - 1):
            start, stop = start // FAN, -(-stop // FAN)
            self._sum(level, slice(start, stop))

    def find(self, masses: Array) -> Array:
        """The places at these distances, (n,) in [0, total), along all weights laid end to end.

        A place without weight is never found.
        """
        if self._fast is not None:
            found = np.empty(len(masses), np.int64)
            self._fast.find_places(self._nodes, self._starts, masses.copy(), found)
            return found
        places = np.zeros(len(masses), np.int64)
        masses = masses.copy()
        rows = np.arange(len(masses))
        for start in self._starts[::-1]:
            first = places * FAN
            sums = self._nodes[start + first[:, None] + np.arange(FAN)].cumsum(1)
            # What was rounded must not lead beyond the last child that has a weight.
            masses = np.minimum(masses, sums[:, -1] * BELOW)
            child = (sums[:, :-1] <= masses[:, None]).sum(1)
            masses -= np.where(child > 0, sums[rows, child - 1], 0.0)
            places = first + child
        return places

    def draw(self, rng: np.random.Generator, batches: int, rows: int) -> tuple[Array, Array]:
        """Places and chances (batches * rows,): in each batch one of each of `rows` equal parts."""
        total, points = self.total, rng.random(batches * rows)
        if self._fast is None:
            places = self.find(masses(points, rows, total))
            return places, self.weights[places] / total
        places, weights = np.empty(len(points), np.int64), np.empty(len(points))
        part = total / max(rows, 1)
        self._fast.draw_places(
            self._nodes, self._starts, points, order(rows), part, places, weights
        )
        return places, weights / total

    def load(self, weights: Array) -> None:
        """These weights for the first places, and none for the others."""
        self._nodes[: self.size] = 0
        self._nodes[: len(weights)] = weights
        for level in range(len(self._starts) - 1):
            self._sum(level, slice(None))

    def _sum(self, level: int, parents: Array | slice) -> None:
        """The sums of these parents of a level's nodes."""
        start, stop = self._starts[level], self._starts[level + 1]
        children = self._nodes[start:stop].reshape(-1, FAN)
        above = self._nodes[stop : stop + len(children)]
        above[parents] = children[parents].cumsum(1)[:, -1]


def aligned_zeros(length: int) -> Array:
    """Zeros whose groups of eight begin where a cache line does."""
    raw = np.zeros(length + FAN, np.float64)
    skip = -(raw.ctypes.data // 8) % FAN
    return raw[skip : skip + length]


@functools.cache
def kernels() -> ModuleType | None:
    """The compiled half, where numba is installed (`flowrl[fast]`)."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("flowrl.nodes.buffers.kernels")
