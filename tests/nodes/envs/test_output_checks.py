"""The check of many numbers at once."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.nodes.envs.output_checks import FiniteCheck


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_number_that_is_not_finite_is_found_anywhere(bad: float, dtype: type) -> None:
    first, second = np.zeros((2, 3), dtype), np.ones(4, dtype)
    all_finite = FiniteCheck(first, second)
    for values in (first, second):
        for k in np.ndindex(values.shape):
            assert all_finite()
            values[k] = bad
            assert not all_finite()
            values[k] = 1
    assert all_finite()


def test_empty_arrays_are_finite() -> None:
    assert FiniteCheck()()
    assert FiniteCheck(np.zeros((0, 3)))()
