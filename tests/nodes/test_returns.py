"""Returns and advantages against hand-worked numbers and independent implementations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Array
from flowrl.nodes import returns
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
    r_t = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], np.float32)
    done_t = np.array([False, False, False, True, False, False])
    windows = nstep_returns(r_t, done_t, 0.5, 3)
    expected = [
        1 + 2 / 2 + 4 / 4,  # 1, 2, 4
        2 + 4 / 2 + 8 / 4,  # 2, 4, 8
        4 + 8 / 2,  # 4, 8; the episode ends
        8,  # 8
        16 + 32 / 2,  # 16, 32; the rows end
        32,
    ]
    assert windows.returns.tolist() == expected
    assert windows.steps.tolist() == [3, 3, 2, 1, 2, 1]
    assert windows.last.tolist() == [2, 3, 3, 3, 5, 5]


def test_one_step_returns_are_the_rewards() -> None:
    r_t = np.array([1.0, -2.0, 3.0, 4.0], np.float32)
    windows = nstep_returns(r_t, np.zeros(4, bool), 0.9, 1)
    assert windows.returns.tolist() == r_t.tolist()
    assert windows.last.tolist() == [0, 1, 2, 3]


def by_loop(
    rewards: list[float], done: list[bool], gamma: float, n: int
) -> list[tuple[float, int, int]]:
    """Compute each window separately, one reward after another."""
    found = []
    for t in range(len(rewards)):
        total, k = 0.0, 0
        while k < n and t + k < len(rewards):
            total += gamma**k * rewards[t + k]
            k += 1
            if done[t + k - 1]:
                break
        found.append((total, k, t + k - 1))
    return found


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(0, 18))
def test_nstep_returns_equal_those_of_a_loop(seed: int, n: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    r_t, done_t = rng.normal(size=rows), rng.random(rows) < 0.3
    windows = nstep_returns(r_t, done_t, 0.9, n)
    expected = by_loop(r_t.tolist(), done_t.tolist(), 0.9, n)
    assert windows.returns.tolist() == pytest.approx([e[0] for e in expected], abs=1e-5)
    assert windows.steps.tolist() == [e[1] for e in expected]
    assert windows.last.tolist() == [e[2] for e in expected]


# Returns along trajectories: against sums that are written as in the papers

ROWS = 12


def trajectory(seed: int = 0) -> dict[str, Array]:
    """Rows of three episodes: the first terminates, the second is truncated, the third goes on."""
    rng = np.random.default_rng(seed)
    columns = {n: rng.standard_normal(ROWS).astype(np.float32) for n in ("r", "v", "v_tp1", "q")}
    cut = np.zeros(ROWS, bool)
    cut[[3, 7, ROWS - 1]] = True
    discount = np.full(ROWS, 0.9, np.float32)
    discount[3] = 0.0
    for name in ("v_tp1",):  # the next value is that of the next row, except at a cut
        columns[name] = np.where(cut, columns[name], np.roll(columns["v"], -1))
    return {**columns, "cut": cut, "discount": discount}


def end_of(t: int, cut: Array) -> int:
    return t + int(np.flatnonzero(cut[t:])[0])


def test_discounted_returns_are_the_sums_to_the_end_of_the_episode() -> None:
    c = trajectory()
    for t, found in enumerate(returns.discounted_returns(c["r"], c["cut"], 0.9)):
        end = end_of(t, c["cut"])
        expected = sum(0.9 ** (k - t) * c["r"][k] for k in range(t, end + 1))
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_td_lambda_averages_returns_of_all_lengths(lambda_: float) -> None:
    """(1 - lambda) sum_n lambda^(n-1) G_{t:t+n}, with all the rest of the weight on the longest (equation 12.3)."""
    c = trajectory()
    found = returns.td_lambda(c["r"], c["discount"], c["v_tp1"], c["cut"], lambda_)
    for t in range(ROWS):
        end, total, factor, weight, result = end_of(t, c["cut"]), 0.0, 1.0, 1.0, 0.0
        for k in range(t, end + 1):
            total += factor * c["r"][k]
            factor *= c["discount"][k]
            share = weight if k == end else weight * (1 - lambda_)
            result += share * (total + factor * c["v_tp1"][k])
            weight *= lambda_
        assert found[t] == pytest.approx(result, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("rho", "c_limit", "lambda_"), [(1.0, 1.0, 1.0), (2.0, 0.5, 0.7)])
def test_vtrace_equals_the_sum_of_equation_1(rho: float, c_limit: float, lambda_: float) -> None:
    c = trajectory()
    ratio = np.exp(np.random.default_rng(1).standard_normal(ROWS)).astype(np.float32)
    limits = {"rho_limit": rho, "c_limit": c_limit, "lambda_": lambda_}
    columns = (c["r"], c["discount"], c["v"], c["v_tp1"], c["cut"])
    target, advantage = returns.vtrace(ratio, *columns, **limits)
    expected = np.zeros(ROWS)
    for s in range(ROWS):
        total, factor = 0.0, 1.0
        for t in range(s, end_of(s, c["cut"]) + 1):
            delta = min(rho, ratio[t]) * (c["r"][t] + c["discount"][t] * c["v_tp1"][t] - c["v"][t])
            total += factor * delta
            factor *= c["discount"][t] * lambda_ * min(c_limit, ratio[t])
        expected[s] = c["v"][s] + total
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)
    next_target = np.where(c["cut"], c["v_tp1"], np.roll(expected, -1))
    clipped = np.minimum(rho, ratio)
    wanted = clipped * (c["r"] + c["discount"] * next_target - c["v"])
    np.testing.assert_allclose(advantage, wanted, rtol=1e-4, atol=1e-5)


def test_vtrace_of_the_same_policy_is_the_return_of_td_1() -> None:
    """With ratios of 1, corrections vanish (remark 1)."""
    c = trajectory()
    target, _ = returns.vtrace(
        np.ones(ROWS, np.float32), c["r"], c["discount"], c["v"], c["v_tp1"], c["cut"]
    )
    expected = returns.td_lambda(c["r"], c["discount"], c["v_tp1"], c["cut"], 1.0)
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)


def test_retrace_equals_the_sum_of_equation_3() -> None:
    c, rng = trajectory(), np.random.default_rng(2)
    ratio = np.exp(rng.standard_normal(ROWS)).astype(np.float32)
    ratio_tp1 = np.roll(ratio, -1)
    found = returns.retrace(
        ratio_tp1, c["r"], c["discount"], c["q"], c["v_tp1"], c["cut"], lambda_=0.9
    )
    for s in range(ROWS):
        total, factor = 0.0, 1.0
        for t in range(s, end_of(s, c["cut"]) + 1):
            total += factor * (c["r"][t] + c["discount"][t] * c["v_tp1"][t] - c["q"][t])
            factor *= c["discount"][t] * 0.9 * min(1.0, ratio_tp1[t])
        assert found[s] == pytest.approx(c["q"][s] + total, rel=1e-4, abs=1e-5)


def test_upgo_follows_actions_that_were_better_than_expected() -> None:
    r = np.array([1, 1, 1], np.float32)
    discount, cut = np.ones(3, np.float32), np.array([False, False, True])
    v_tp1 = np.array([5.0, 0.0, 0.0], np.float32)
    q_tp1 = np.array([2.0, 2.0, 0.0], np.float32)
    # the step after the first disappoints: it bootstraps; that after the second does not
    assert returns.upgo(r, discount, v_tp1, q_tp1, cut).tolist() == [6.0, 2.0, 1.0]
