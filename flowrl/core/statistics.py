"""Statistics of few values: the interquartile mean and its bootstrap interval (Agarwal et al. 2021)."""

from __future__ import annotations

import numpy as np

from flowrl.core.batch import Array

BOOTSTRAP_RESAMPLES = 1000
CONFIDENCE = 0.95


def interquartile_mean(values: Array) -> Array:
    """Return the mean along the last axis without its smallest and largest quarters, each rounded down."""
    n = values.shape[-1]
    cut = n // 4
    middle: Array = np.sort(values, -1)[..., cut : n - cut].mean(-1)
    return middle


def confidence_interval(values: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Return the interval of the interquartile mean, by the percentile bootstrap (Efron 1979)."""
    index = rng.integers(len(values), size=(BOOTSTRAP_RESAMPLES, len(values)))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(interquartile_mean(values[index]), [tail, 100 - tail])
    return float(low), float(high)
