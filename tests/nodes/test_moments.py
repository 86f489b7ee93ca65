"""Running moments against numpy's over all rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.nodes.moments import Moments


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_moments_of_batches_equal_those_of_all_rows_together(sizes, seed) -> None:
    rng, moments = np.random.default_rng(seed), Moments((2,))
    rows = rng.standard_normal((sum(sizes), 2)) * [1, 100] + [0, 1e3]
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.update(part)
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    wanted = np.where(rows.std(0) > 1e-6, rows.std(0), 1.0)
    np.testing.assert_allclose(moments.std, wanted, rtol=1e-6)


def test_the_standard_deviation_of_constant_values_is_1() -> None:
    moments = Moments()
    assert moments.std == 1
    moments.update(np.full(10, 7.0))
    assert (moments.mean, moments.std) == (7, 1)


def test_loaded_moments_continue() -> None:
    one, other = Moments((3,)), Moments((3,))
    rows = np.random.default_rng(0).standard_normal((20, 3))
    one.update(rows[:9])
    other.load_state_dict(one.state_dict())
    one.update(rows[9:])
    other.update(rows[9:])
    np.testing.assert_array_equal(one.std, other.std)
