"""Advantages against hand-worked numbers and against the definition, summed term by term."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.nodes.moments import Moments
from flowrl.nodes.returns import gae, normalise


def slow_gae(r, discount, v, v_tp1, cut, lambda_):
    """The definition: the sum over k of (discount lambda)^k delta, up to the first cut."""
    n, advantages = len(r), []
    for t in range(n):
        total, factor = 0.0, 1.0
        for k in range(t, n):
            total += factor * (r[k] + discount[k] * v_tp1[k] - v[k])
            factor *= discount[k] * lambda_
            if cut[k]:
                break
        advantages.append(total)
    return np.array(advantages)


def test_gae_of_three_steps_is_as_worked_by_hand() -> None:
    r_t = np.array([1.0, 2.0, 3.0])
    discount_t = np.array([0.5, 0.5, 0.0])  # the last one terminates
    v_t, v_tp1 = np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 100.0])
    cut_t = np.array([False, False, True])
    # delta = [1 + 1 - 1, 2 + 2 - 2, 3 + 0 - 4] = [1, 2, -1]; decay = 0.5 * 0.8 = 0.4
    # A = [1 + 0.4 * 1.6, 2 + 0.4 * -1, -1] = [1.64, 1.6, -1]
    expected = np.array([1.64, 1.6, -1.0])
    np.testing.assert_allclose(gae(r_t, discount_t, v_t, v_tp1, cut_t, 0.8), expected, rtol=1e-6)


def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not() -> None:
    one, ten = np.ones(1), np.full(1, 10.0)
    cut = np.array([True])
    truncated = gae(one, 0.9 * one, 0 * one, ten, cut, 0.95)
    terminated = gae(one, 0.0 * one, 0 * one, ten, cut, 0.95)
    np.testing.assert_allclose(truncated, [1 + 0.9 * 10])
    np.testing.assert_allclose(terminated, [1.0])


def test_nothing_flows_back_over_a_cut() -> None:
    zeros, rewards = np.zeros(4), np.array([0.0, 0.0, 5.0, 5.0])
    cut = np.array([False, True, False, True])
    found = gae(rewards, np.ones(4), zeros, zeros, cut, 1.0)
    np.testing.assert_allclose(found, [0, 0, 10, 5])


def test_lambda_1_is_the_return_minus_the_value() -> None:
    rewards, values = np.array([1.0, 1, 1]), np.array([0.5, 0.25, 0.125])
    cut = np.array([False, False, True])
    found = gae(rewards, np.array([1.0, 1, 0]), values, np.append(values[1:], 9), cut, 1.0)
    np.testing.assert_allclose(found, [3, 2, 1] - values)


@st.composite
def trajectories(draw):
    n = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    terminated = rng.random(n) < 0.2
    cut = terminated | (rng.random(n) < 0.2)
    cut[-1] = True
    discount = draw(st.floats(0, 1)) * ~terminated
    r, v, v_tp1 = rng.standard_normal((3, n))
    return r, discount, v, v_tp1, cut, draw(st.floats(0, 1))


@given(trajectories())
@settings(max_examples=200, deadline=None)
def test_gae_agrees_with_its_definition(case) -> None:
    np.testing.assert_allclose(gae(*case), slow_gae(*case), rtol=1e-5, atol=1e-5)


def test_normalised_numbers_have_mean_0_and_deviation_1() -> None:
    found = normalise(np.array([1.0, 2.0, 3.0, 10.0]))
    assert found.mean() == pytest.approx(0, abs=1e-7)
    assert found.std() == pytest.approx(1, rel=1e-6)


def test_equal_numbers_are_normalised_to_0() -> None:
    np.testing.assert_array_equal(normalise(np.full(5, 3.0)), np.zeros(5))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_moments_of_batches_are_those_of_all_rows_together(sizes, seed) -> None:
    rng, moments = np.random.default_rng(seed), Moments((2,))
    rows = rng.standard_normal((sum(sizes), 2)) * [1, 100] + [0, 1e3]
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.update(part)
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    wanted = np.where(rows.std(0) > 1e-6, rows.std(0), 1.0)
    np.testing.assert_allclose(moments.std, wanted, rtol=1e-6)


def test_a_deviation_that_nothing_varied_for_is_1() -> None:
    moments = Moments()
    assert moments.std == 1
    moments.update(np.full(10, 7.0))
    assert (moments.mean, moments.std) == (7, 1)


def test_loaded_moments_go_on() -> None:
    one, other = Moments((3,)), Moments((3,))
    rows = np.random.default_rng(0).standard_normal((20, 3))
    one.update(rows[:9])
    other.load_state_dict(one.state_dict())
    one.update(rows[9:])
    other.update(rows[9:])
    np.testing.assert_array_equal(one.std, other.std)
