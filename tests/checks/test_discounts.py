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
        ("cartpole_dqn", "collector.policy.gamma", "nodes.collector", 0.5, 0.99),
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


RANDOM = {"collector.policy": {"type": "random"}}


@pytest.mark.parametrize("graph", ["cartpole_dqn", "pendulum_sac", "cartpole_reinforce"])
def test_rows_of_a_policy_without_a_gamma_have_that_of_the_policy_that_learns(graph: str) -> None:
    for gamma in (0.99, 0.5):
        checked = flowrl.load(graph, {**RANDOM, "policy.gamma": gamma}).check()
        found = [p.what for p in checked.problems if "discounted" in p.what]
        assert not found
        rows = checked.facts["collector"].outs["data"]
        assert rows is not None
        assert rows["discount"].gamma == gamma


def of_each_node(**collector: Any) -> dict[str, Any]:
    """A graph without a section `policy`, whose collector acts at random."""
    policies = {name: {"policy": {"type": "sac"}} for name in ("learner", "evaluator")}
    nodes = {**policies, "collector": {"policy": {"type": "random"}, **collector}}
    return {"extends": "pendulum_sac", "policy": None, "nodes": nodes}


def test_rows_of_a_random_policy_need_to_know_who_learns() -> None:
    [problem] = problems(of_each_node(), {})
    assert "nodes.learner: the rows are discounted with `gamma: 1`, and the policy" in problem
    assert not problems(of_each_node(learning_policy={"type": "sac"}), {})
    [problem] = problems(of_each_node(learning_policy={"type": "sac", "gamma": 0.9}), {})
    assert "discounted with `gamma: 0.9`" in problem


def test_the_policy_that_learns_has_the_gamma_of_a_policy_that_acts_with_its_weights() -> None:
    [problem] = problems("cartpole_ppo_gail", {"collector.learning_policy.gamma": 0.5})
    assert "nodes.collector: the rows are discounted with `gamma: 0.99`" in problem


@pytest.mark.parametrize("graph", ["cartpole_bc", "cartpole_distillation", "cartpole_dagger"])
def test_a_gamma_of_a_policy_that_learns_from_no_rewards_is_refused(graph: str) -> None:
    [problem] = problems(graph, {"policy.gamma": 0.5})
    assert "`gamma` has no effect" in problem
    assert "learns from no rewards" in problem


def test_rows_of_any_discount_are_fine_for_a_policy_that_learns_from_no_rewards() -> None:
    nodes = of_each_node()["nodes"]
    cloning = {name: {**nodes[name], "policy": {"type": "bc"}} for name in ("learner", "evaluator")}
    assert not problems({**of_each_node(), "nodes": {**nodes, **cloning}}, {})
