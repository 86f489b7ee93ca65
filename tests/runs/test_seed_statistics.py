"""Statistics over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.runs.seed_statistics import seed_statistics


def test_the_statistics_of_five_values() -> None:
    found = seed_statistics([100.0, 500.0, 400.0, 450.0, 480.0])
    assert (found.count, found.median, found.mean) == (5, 450.0, 386.0)
    assert found.deviation == pytest.approx(164.26, abs=0.005)
    assert found.interquartile_mean == pytest.approx((400 + 450 + 480) / 3)


def test_one_value_has_neither_a_deviation_nor_an_interval() -> None:
    found = seed_statistics([3.0])
    assert (found.median, found.mean, found.interquartile_mean) == (3.0, 3.0, 3.0)
    assert (found.deviation, found.interval) == (None, None)


def test_the_interval_of_many_normal_values_is_that_of_theory() -> None:
    values = np.random.default_rng(7).standard_normal(400).tolist()
    found = seed_statistics(values)
    assert found.interval is not None
    low, high = found.interval
    assert low < found.interquartile_mean < high
    # The variance of a 25 % trimmed mean of n standard normal values is about 1.195 / n.
    assert (high - low) / (2 * 1.96) == pytest.approx(np.sqrt(1.195 / 400), rel=0.15)


def test_equal_values_have_an_interval_of_no_width_and_every_call_the_same_interval() -> None:
    assert seed_statistics([2.0, 2.0, 2.0]).interval == (2.0, 2.0)
    assert seed_statistics([1.0, 2.0, 5.0]) == seed_statistics([1.0, 2.0, 5.0])
