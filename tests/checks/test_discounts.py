"""Rows are discounted with the gamma of the policy that learns from them."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl


def problems(graph: Any, changes: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in flowrl.load(graph, changes).check().problems]


@pytest.mark.parametrize(
    ("graph", "setting", "owner", "found", "wanted"),
    [
        # a buffer that sums rewards, and one that does not
        ("cartpole_dqn", "collector.policy.gamma", "policy", 0.5, 0.99),
        ("cartpole_dqn", "learner.policy.gamma", "nodes.learner", 0.99, 0.5),
        ("pendulum_sac", "learner.policy.gamma", "nodes.learner", 0.99, 0.5),
        # tokens, unrolls and sequences
        ("cartpole_ppo", "learner.policy.gamma", "nodes.learner", 0.99, 0.5),
        ("hiddencartpole_impala", "learner.policy.gamma", "nodes.learner", 0.97, 0.5),
        ("hiddencartpole_r2d2", "learner.policy.gamma", "nodes.learner", 0.98, 0.5),
        # rows of a file
        ("cartpole_cql", "learner.policy.gamma", "nodes.learner", 0.99, 0.5),
    ],
)
def test_rows_of_another_gamma_are_refused(
    graph: str, setting: str, owner: str, found: float, wanted: float
) -> None:
    [problem] = problems(graph, {setting: 0.5})
    assert problem == (
        f"--set {setting}=0.5: {owner}: the rows are discounted with `gamma: {found:g}`, and the policy that takes "
        f"them has {wanted:g}; give one gamma to all, as in the section `policy`"
    )


@pytest.mark.parametrize("graph", ["cartpole_dqn", "cartpole_ppo", "hiddencartpole_r2d2"])
def test_one_gamma_of_all_is_sound(graph: str) -> None:
    assert not problems(graph, {"policy.gamma": 0.5})


def test_a_policy_without_a_gamma_is_no_problem() -> None:
    assert not problems("cartpole_dqn", {"collector.policy": {"type": "random"}})
