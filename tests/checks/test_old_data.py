"""`check` refuses graphs in which an on-policy algorithm would learn from rows that older weights made."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.graph.loading import load_data

GRU = {"model": {"type": "gru", "size": 8}, "unroll_steps": 16}


def problems(extends: str, buffer: dict[str, Any], *edges: Any, **graph: Any) -> list[str]:
    whole = {
        "extends": extends,
        "nodes": {"evaluator": None, "buffer": {"batch_size": 4, **buffer}},
        "edges": [*(edges or ["collector -> buffer -> learner"])],
        "warmup": [{"edges": ["collector -> buffer"], "steps": 2048}],
        **graph,
    }
    return [str(problem) for problem in check(load_data(whole)).problems]


@pytest.mark.parametrize(
    ("extends", "buffer", "policy"),
    [
        ("cartpole_ppo", "episode_buffer", {}),
        ("cartpole_ppo", "naive_buffer", GRU),
        ("cartpole_a2c", "advanced_buffer", GRU),
    ],
)
def test_on_policy_algorithms_are_refused_behind_replay(
    extends: str, buffer: str, policy: dict[str, Any]
) -> None:
    found = problems(extends, {"type": buffer}, policy=policy)
    [problem] = [problem for problem in found if "whole episodes" not in problem]
    assert (
        "learner learns on-policy, and buffer.batches repeats rows that older weights made"
        in problem
    )
    assert "feed learner without buffer, or take an algorithm that learns from replay" in problem


def test_a_buffer_is_found_through_the_nodes_behind_it() -> None:
    edges = ["collector -> buffer -> part -> learner"]
    nodes = {"part": {"type": "rows", "count": 8}, "evaluator": None}
    nodes["buffer"] = {"type": "episode_buffer", "batch_size": 4, "part_steps": 2}
    found = problems("cartpole_ppo", {}, *edges, nodes=nodes)
    assert any("buffer.batches repeats rows" in problem for problem in found)


def test_vtrace_corrects_for_replayed_rows() -> None:
    found = problems("cartpole_impala", {"type": "episode_buffer"})
    assert not any("repeats rows" in problem for problem in found)


def test_a_queue_does_not_replay() -> None:
    assert (
        problems("cartpole_ppo", {"type": "queue_buffer", "batch_size": 64, "updates_per_push": 4})
        == []
    )


def test_the_rows_of_an_expert_may_be_replayed() -> None:
    nodes = {
        "evaluator": None,
        "gail": {"type": "gail"},
        "demos": {"type": "demos", "path": "cartpole_demos.npz"},
        "buffer": {"type": "naive_buffer", "batch_size": 64},
    }
    edges = ["collector -> gail -> learner", "demos -> buffer -> gail.expert"]
    found = problems("cartpole_ppo_gail", {}, *edges, nodes=nodes, warmup=[])
    assert not any("repeats rows" in problem for problem in found)


# Whole episodes

WHOLE = {"collector": {"type": "episode_collector", "n_episode": 4}, "evaluator": None}
EPISODES = {"type": "episode_buffer", "batch_size": 4}


@pytest.mark.parametrize("between", ["", "queue", "part"])
def test_an_episode_buffer_needs_whole_episodes(between: str) -> None:
    cutting = {"queue": {"type": "queue_buffer"}, "part": {"type": "rows", "count": 8}}
    nodes = {**WHOLE, "buffer": EPISODES} | ({between: cutting[between]} if between else {})
    if not between:
        nodes["collector"] = {"type": "sample_collector"}
    chain = " -> ".join(["collector", *([between] if between else []), "buffer", "learner"])
    found = problems("cartpole_impala", {}, chain, nodes=nodes, warmup=[])
    culprit = (
        f"{between}.{'batches' if between == 'queue' else 'out'}" if between else "collector.data"
    )
    expected = f"buffer.data needs whole episodes, and {culprit} gives tokens that end within them"
    assert sum(expected in problem for problem in found) == 1


def test_an_episode_buffer_takes_the_episodes_of_a_collector() -> None:
    nodes = {**WHOLE, "buffer": EPISODES, "bonus": {"type": "constant"}}
    edges = ["collector -> bonus -> buffer -> learner"]
    assert problems("cartpole_impala", {}, *edges, nodes=nodes, warmup=[]) == []


# Settings that come with weights


def test_settings_of_a_collectors_own_policy_must_come_with_the_weights() -> None:
    policy = {"type": "dqn", "nstep": 10, "reset_options": {"length": 3}}
    graph = {"extends": "cartpole_dqn", "nodes": {"collector": {"policy": policy}}}
    [problem] = [str(problem) for problem in check(load_data(graph)).problems]
    assert "policy.reset_options.length depends on 'env/length'" in problem
    assert "which learner.weights does not give" in problem


def test_a_collector_that_computes_advantages_needs_a_learner_that_sends_values() -> None:
    policy = {"type": "ppo", "advantages": "collector"}
    graph = {"extends": "cartpole_ppo", "nodes": {"collector": {"policy": policy}}}
    [problem] = [str(problem) for problem in check(load_data(graph)).problems]
    assert "policy.advantages depends on 'value network'" in problem
