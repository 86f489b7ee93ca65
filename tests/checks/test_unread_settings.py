"""Settings of policies that have no effect on the node that has them are refused."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl
from flowrl.graph.bundled import bundled_graphs


def problems(graph: Any, changes: dict[str, Any] | None = None) -> list[str]:
    return [str(problem) for problem in flowrl.load(graph, changes or {}).check().problems]


@pytest.mark.parametrize(
    "setting",
    [
        "collector.policy.lr",
        "collector.policy.epsilon",  # the weights come with that of the learner
        "collector.policy.max_grad_norm",
        "evaluator.policy.gamma",  # nobody reads its rows
        "evaluator.policy.lr",
        "evaluator.policy.optimiser.eps",
    ],
)
def test_what_only_learning_reads_is_refused_where_a_policy_acts(setting: str) -> None:
    [found] = problems("cartpole_dqn", {setting: 0.125})
    node, _, key = setting.partition(".")
    assert found == (
        f"--set {setting}=0.125: nodes.{node}: '{key}' has no effect: {node} acts with the weights of learner, "
        f"whose own value counts; leave it out, or set `learner.{key}`"
    )


@pytest.mark.parametrize(
    ("graph", "changes"),
    [
        ("cartpole_dqn", {"collector.policy.explore": [{"type": "epsilon_ladder"}]}),
        ("cartpole_ppo", {"evaluator.policy.eval_draws": True}),
        ("cartpole_c51", {"evaluator.policy.v_max": 30}),
        # a collector that computes advantages may read any setting
        (
            "cartpole_ppo",
            {"policy.advantages": "collector", "collector.policy.gae_lambda": 0.5},
        ),
    ],
)
def test_what_acting_reads_may_differ_from_the_learner(graph: str, changes: dict[str, Any]) -> None:
    assert not problems(graph, changes)


@pytest.mark.parametrize(
    ("graph", "setting", "value"),
    [
        ("cartpole_ppo", "evaluator.policy.gae_lambda", 0.125),
        ("pendulum_sac", "collector.policy.critic.hidden", [8]),
        ("cartpole_ppo_airl", "airl.policy.lr", 0.125),
        ("hiddencartpole_r2d2", "collector.policy.lr", 0.125),
    ],
)
def test_what_an_algorithm_acts_with_is_found_from_its_networks_and_steps(
    graph: str, setting: str, value: Any
) -> None:
    [found] = problems(graph, {setting: value})
    assert f"'{setting.partition('.')[2]}' has no effect" in found


def test_evaluators_do_not_explore() -> None:
    [found] = problems("cartpole_dqn", {"evaluator.policy.explore": [{"type": "random_actions"}]})
    assert "nodes.evaluator: 'policy.explore' has no effect" in found


EXPLORE = [{"type": "random_actions"}]
LADDER = [{"type": "epsilon_ladder"}]


@pytest.mark.parametrize(
    ("graph", "key", "value", "reader"),
    [
        ("cartpole_ppo", "eval_draws", True, "evaluator"),
        ("cartpole_reinforce", "eval_draws", True, "evaluator"),
        ("cartpole_dqn", "explore", EXPLORE, "collector"),
    ],
)
def test_what_only_acting_reads_is_refused_at_a_learner(
    graph: str, key: str, value: Any, reader: str
) -> None:
    setting = f"policy.{key}"
    [found] = problems(graph, {f"learner.{setting}": value})
    assert f"nodes.learner: '{setting}' has no effect: learner does not act, and {reader}" in found
    assert f"leave it out, or set `{reader}.{setting}` as well" in found
    assert not problems(graph, {f"learner.{setting}": value, f"{reader}.{setting}": value})
    assert not problems(graph, {setting: value})


def test_an_exploring_step_of_a_learner_has_its_schedules_only() -> None:
    assert not problems(
        "cartpole_dqn",
        {"policy.explore": EXPLORE, "learner.policy.explore": [{**EXPLORE[0], "share": 0.9}]},
    )
    [found] = problems(
        "cartpole_dqn",
        {"policy.explore": LADDER, "learner.policy.explore": [{**LADDER[0], "rungs": 3}]},
    )
    assert "learner does not act" in found


def test_an_exploring_step_of_a_collector_has_all_but_its_schedules() -> None:
    assert not problems(
        "cartpole_dqn",
        {"policy.explore": LADDER, "collector.policy.explore": [{**LADDER[0], "rungs": 3}]},
    )
    [found] = problems(
        "cartpole_dqn",
        {"policy.explore": EXPLORE, "collector.policy.explore": [{**EXPLORE[0], "share": 0.9}]},
    )
    assert "collector acts with the weights of learner, whose own value counts" in found


def test_what_an_expert_would_learn_with_is_refused() -> None:
    changes = {"labels.policy.trained.lr": 1, "labels.policy.trained.epochs": 9}
    found = problems("cartpole_dagger", changes)
    assert [one.partition(" has no effect: ")[2] for one in found] == [
        "the policy ppo only acts here, and does not learn; leave it out"
    ] * 2


@pytest.mark.parametrize("group", ["wolves", "sheep"])
def test_the_policy_of_a_group_is_compared_with_its_own_learner(group: str) -> None:
    pytest.importorskip("mpe2")
    [found] = problems("tag_ppo", {f"collector.policies.{group}.lr": 1})
    assert f"the weights of {group}" in found
    assert f"or set `{group}.policy.lr`" in found


def test_the_policy_of_a_player_is_refused_what_only_its_learner_reads() -> None:
    pytest.importorskip("pettingzoo")
    found = problems("examples/my_league/dqn_exploiter.yaml", {"collector.policy.lr": 0.5})
    assert len(found) == 1
    assert "nodes.collector: 'policy.lr' has no effect" in found[0]


@pytest.mark.parametrize("setting", ["lr", "epsilon", "target.every_iters", "model.init"])
def test_a_setting_of_a_section_may_differ_at_the_learner(setting: str) -> None:
    value: Any = "orthogonal" if setting == "model.init" else 1
    assert not problems("cartpole_dqn", {f"learner.policy.{setting}": value})
    assert not problems("cartpole_dqn", {f"policy.{setting}": value})


def test_the_value_that_was_written_last_counts() -> None:
    each = {"type": "dqn", "lr": 0.25}
    base = {
        "extends": "cartpole_dqn",
        "policy": None,
        "nodes": {name: {"policy": each} for name in ("collector", "learner", "evaluator")},
    }
    assert not problems(base)
    assert not problems(base, {"learner.policy.lr": 0.5})
    assert len(problems(base, {"collector.policy.lr": 0.5})) == 1
    base["nodes"]["evaluator"] = {"policy": {**each, "lr": 0.5}}
    [found] = problems(base)
    assert "nodes.evaluator: 'policy.lr' has no effect" in found


def test_settings_of_which_a_buffer_reads_none_are_refused() -> None:
    [found] = problems("cartpole_dqn", {"buffer.policy.lr": 1})
    assert found == (
        "--set buffer.policy.lr=1: nodes.buffer: 'policy.lr' has no effect: of policy, only nstep and gamma are "
        "read; set it for the node that learns"
    )


@pytest.mark.parametrize("name", sorted({"cartpole_dqn", "cartpole_ppo", "cartpole_bc"}))
@pytest.mark.parametrize("changes", [{}, {"learner.policy.lr": 0.0123}])
def test_a_resolved_graph_is_sound_and_resolves_to_itself(
    name: str, changes: dict[str, Any], tmp_path: Any
) -> None:
    assert name in bundled_graphs()
    path = tmp_path / "g.yaml"
    resolved = flowrl.load(name, changes).expand()
    path.write_text(resolved)
    assert flowrl.load(path).expand().split("\n")[1:] == resolved.split("\n")[1:]
    assert not problems(path, {"learner.policy.lr": 0.5})
    [found] = problems(path, {"evaluator.policy.lr": 0.5})
    assert "nodes.evaluator: 'policy.lr' has no effect" in found
