"""Returns and advantages against hand-worked numbers and independent implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.nodes.returns import bootstrap_discount, gae, normalise, nstep_returns


def slow_gae(r, discount, v, v_tp1, cut, lambda_):
    """Compute the definition: the sum over k of (discount lambda)^k delta, up to the first cut."""
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


def test_gae_of_three_steps_matches_a_hand_worked_example() -> None:
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


def test_advantages_do_not_propagate_across_a_cut() -> None:
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


def test_normalised_numbers_have_mean_0_and_standard_deviation_1() -> None:
    found = normalise(np.array([1.0, 2.0, 3.0, 10.0]))
    assert found.mean() == pytest.approx(0, abs=1e-7)
    assert found.std() == pytest.approx(1, rel=1e-6)


def test_equal_numbers_are_normalised_to_0() -> None:
    np.testing.assert_array_equal(normalise(np.full(5, 3.0)), np.zeros(5))


def test_only_termination_sets_the_bootstrap_discount_to_0() -> None:
    assert bootstrap_discount(0.9, np.array([False, True])).tolist() == [np.float32(0.9), 0.0]


def test_the_bootstrap_discount_is_gamma_to_the_number_of_rewards() -> None:
    found = bootstrap_discount(0.5, np.array([False, False, True]), np.array([1, 3, 2]))
    assert found.tolist() == [0.5, 0.125, 0.0]
    assert found.dtype == np.float32


def test_no_rows_have_no_discounts() -> None:
    none = np.zeros((2, 0), bool)
    assert bootstrap_discount(0.9, none, none.astype(int)).shape == (2, 0)


def test_nstep_returns_match_a_hand_worked_example() -> None:
    # gamma 1/2, n 3; the episode ends with the fourth reward
    r_t = np.array([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]], np.float32)
    done_t = np.array([[False, False, False, True, False, False]])
    windows = nstep_returns(r_t, done_t, 0.5, 3)
    expected = [
        1 + 2 / 2 + 4 / 4,  # 1, 2, 4
        2 + 4 / 2 + 8 / 4,  # 2, 4, 8
        4 + 8 / 2,  # 4, 8; the episode ends
        8,  # 8
    ]
    assert windows.returns.tolist() == [expected]
    assert windows.steps.tolist() == [[3, 3, 2, 1]]
    assert windows.last.tolist() == [[2, 3, 3, 3]]


def test_one_step_returns_are_the_rewards() -> None:
    r_t = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)
    windows = nstep_returns(r_t, np.zeros((2, 2), bool), 0.9, 1)
    assert windows.returns.tolist() == r_t.tolist()
    assert windows.last.tolist() == [[0, 1], [0, 1]]


def by_loop(
    rewards: list[float], done: list[bool], gamma: float, n: int
) -> list[tuple[float, int, int]]:
    """Compute each window separately, one reward after another."""
    found = []
    for t in range(len(rewards) - n + 1):
        total, k = 0.0, 0
        while k < n:
            total += gamma**k * rewards[t + k]
            k += 1
            if done[t + k - 1]:
                break
        found.append((total, k, t + k - 1))
    return found


@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(1, 6), st.integers(0, 12))
def test_nstep_returns_equal_those_of_a_loop(seed: int, envs: int, n: int, more: int) -> None:
    rng = np.random.default_rng(seed)
    steps = n + more
    r_t, done_t = rng.normal(size=(envs, steps)), rng.random((envs, steps)) < 0.3
    windows = nstep_returns(r_t, done_t, 0.9, n)
    for i in range(envs):
        expected = by_loop(r_t[i].tolist(), done_t[i].tolist(), 0.9, n)
        assert windows.returns[i].tolist() == pytest.approx([e[0] for e in expected], abs=1e-5)
        assert windows.steps[i].tolist() == [e[1] for e in expected]
        assert windows.last[i].tolist() == [e[2] for e in expected]
