"""What many returns come to: averages that one lucky episode does not move, and how sure they are."""

from __future__ import annotations

import numpy as np

from flowrl.core.batch import Array

RESAMPLES = 1000
CONFIDENCE = 0.95


def interquartile_mean(totals: Array) -> Array:
    """The mean of the middle half, along the last axis (Agarwal et al. 2021)."""
    n = totals.shape[-1]
    cut = n // 4
    middle: Array = np.sort(totals, -1)[..., cut : n - cut].mean(-1)
    return middle


def confidence_interval(totals: Array, rng: np.random.Generator) -> tuple[float, float]:
    """Between which values the interquartile mean lies, by the percentile bootstrap (Efron 1979)."""
    drawn = totals[rng.integers(len(totals), size=(RESAMPLES, len(totals)))]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(interquartile_mean(drawn), [tail, 100 - tail])
    return float(low), float(high)
