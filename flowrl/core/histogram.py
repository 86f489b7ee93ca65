"""How an array's numbers are spread: counts between edges, which records carry instead of the array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

BINS = 30


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of finite numbers. Bin k is from edge k to edge k + 1; `total` and `squares` are sums over the numbers."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    squares: float


def histogram_of(values: Any) -> Histogram | None:
    """Return the histogram of an array's finite numbers, or None if it has none."""
    numbers = np.asarray(values, np.float64).reshape(-1)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return None
    counts, edges = np.histogram(numbers, BINS)
    return Histogram(
        tuple(edges.tolist()),
        tuple(counts.tolist()),
        float(numbers.sum()),
        float(np.square(numbers).sum()),
    )
