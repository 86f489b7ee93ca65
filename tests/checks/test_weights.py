"""Whoever acts with weights must have the network of the learner that trains them."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl


def problems(graph: Any, changes: dict[str, Any] | None = None) -> list[str]:
    return [str(problem) for problem in flowrl.load(graph, changes or {}).check().problems]


def test_a_collector_with_another_network_than_its_learner_is_refused() -> None:
    hidden = "learner.policy.model.hidden"
    found = problems("cartpole_dqn", {hidden: [8]})
    assert len(found) == 2
    assert "learner.weights -> collector.weights: collector acts with another network" in found[0]
    assert "model.hidden is [8] of learner and [128, 128] of collector" in found[0]
    assert "give collector the policy of learner" in found[0]
    assert "evaluator acts with another network" in found[1]


def test_another_activation_is_another_network_and_another_initialisation_is_not() -> None:
    changed = {"learner.policy.model.activation": "relu"}
    assert (
        "model.activation is relu of learner and tanh of c" in problems("cartpole_dqn", changed)[0]
    )
    assert not problems("cartpole_dqn", {"learner.policy.model.init": "orthogonal"})


def test_heads_of_another_kind_are_another_network() -> None:
    found = problems("cartpole_dqn", {"learner.policy.dueling": False})[0]
    assert "heads.q.type is linear of learner and dueling of collector" in found


@pytest.mark.parametrize("group", ["wolves", "sheep"])
def test_the_policy_of_a_group_must_have_the_network_of_its_learner(group: str) -> None:
    pytest.importorskip("mpe2")
    found = problems("tag_ppo", {f"{group}.policy.model.hidden": [8]})
    assert len(found) == 2
    assert f"(ppo, `policies.{group}`) than {group} trains" in found[0]
