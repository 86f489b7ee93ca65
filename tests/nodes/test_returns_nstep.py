"""n-step returns and bootstrap discounts, against numbers worked out by hand and a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.nodes.returns import bootstrap_discount, nstep_returns


def test_only_termination_takes_the_next_value_away() -> None:
    assert bootstrap_discount(0.9, np.array([False, True])).tolist() == [np.float32(0.9), 0.0]


def test_a_value_several_rewards_away_is_discounted_once_for_each() -> None:
    found = bootstrap_discount(0.5, np.array([False, False, True]), np.array([1, 3, 2]))
    assert found.tolist() == [0.5, 0.125, 0.0]
    assert found.dtype == np.float32


def test_no_rows_have_no_discounts() -> None:
    none = np.zeros((2, 0), bool)
    assert bootstrap_discount(0.9, none, none.astype(int)).shape == (2, 0)


def test_returns_worked_out_by_hand() -> None:
    # gamma 1/2, n 3; the episode ends with the fourth reward
    r_t = np.array([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]], np.float32)
    done_t = np.array([[False, False, False, True, False, False]])
    windows = nstep_returns(r_t, done_t, 0.5, 3)
    expected = [
        1 + 2 / 2 + 4 / 4,  # 1, 2, 4
        2 + 4 / 2 + 8 / 4,  # 2, 4, 8
        4 + 8 / 2,  # 4, 8: then the episode is over
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
    """Each window alone, one reward after another."""
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
def test_returns_are_those_of_a_plain_loop(seed: int, envs: int, n: int, more: int) -> None:
    rng = np.random.default_rng(seed)
    steps = n + more
    r_t, done_t = rng.normal(size=(envs, steps)), rng.random((envs, steps)) < 0.3
    windows = nstep_returns(r_t, done_t, 0.9, n)
    for i in range(envs):
        expected = by_loop(r_t[i].tolist(), done_t[i].tolist(), 0.9, n)
        assert windows.returns[i].tolist() == pytest.approx([e[0] for e in expected], abs=1e-5)
        assert windows.steps[i].tolist() == [e[1] for e in expected]
        assert windows.last[i].tolist() == [e[2] for e in expected]
