"""Statistics over seeds: the median, the mean, and the interquartile mean with a bootstrap interval."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowrl.core.statistics import confidence_interval, interquartile_mean


@dataclass(frozen=True, slots=True)
class SeedStatistics:
    """What the values of several seeds have in common. With one seed there is no deviation and no interval."""

    count: int
    median: float
    mean: float
    deviation: float | None  # of a sample: divided by count - 1
    interquartile_mean: float
    interval: tuple[float, float] | None  # of the interquartile mean, with 95 % confidence


def seed_statistics(values: Sequence[float]) -> SeedStatistics:
    """Return the statistics of at least one value. The same values give the same interval each time."""
    several, array = len(values) > 1, np.array(values, dtype=np.float64)
    return SeedStatistics(
        len(values),
        statistics.median(values),
        statistics.fmean(values),
        statistics.stdev(values) if several else None,
        float(interquartile_mean(array)),
        confidence_interval(array, np.random.default_rng(0)) if several else None,
    )
