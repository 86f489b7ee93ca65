"""`check` refuses reward models whose rewards no learner reads."""

from __future__ import annotations

from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.graph.loading import load_data

BONUS = {"bonus": {"type": "constant"}}


def problems(extends: str, nodes: dict[str, Any], *edges: str) -> list[str]:
    graph = {"extends": extends, "nodes": nodes, "edges": [*edges]}
    return [problem.what for problem in check(load_data(graph)).problems]


@pytest.mark.parametrize("model", ["constant", "gail"])
def test_a_reward_model_is_refused_before_an_algorithm_that_reads_no_rewards(model: str) -> None:
    nodes = {"bonus": {"type": model}}
    expert = ["others -> bonus.expert"] if model == "gail" else []
    if expert:
        nodes["others"] = {"type": "demos", "path": "cartpole_demos.npz"}
    edges = ["demos -> bonus -> buffer", *expert]
    assert problems("cartpole_bc", nodes, *edges) == [
        "nodes.bonus has no effect: it changes 'reward', which no learner behind it reads"
    ]


def test_a_reward_model_is_refused_where_agents_learn_from_their_own_rewards() -> None:
    pytest.importorskip("mpe2")
    own = {"policy": {"rewards": "own"}, "env": {"info": ["rewards"]}}
    for more, refused in ((own, True), ({}, False)):
        graph = {
            "extends": "spread_mappo",
            "nodes": BONUS,
            "edges": ["collector -> bonus -> learner"],
        }
        found = [problem.what for problem in check(load_data({**graph, **more})).problems]
        what = "nodes.bonus has no effect: it changes 'reward', which no learner behind it reads"
        assert found == ([what] if refused else [])


def test_a_reward_model_behind_another_one_is_refused_too() -> None:
    two = {**BONUS, "further": {"type": "constant"}}
    found = problems("cartpole_bc", two, "demos -> bonus -> further -> buffer")
    assert [what.partition(" has")[0] for what in found] == ["nodes.bonus", "nodes.further"]


@pytest.mark.parametrize(
    ("extends", "nodes", "edges"),
    [
        ("cartpole_dqn", BONUS, ["collector -> bonus -> buffer"]),
        ("cartpole_ppo", BONUS, ["collector -> bonus -> learner"]),
        # The weights of rows are computed from their rewards.
        ("cartpole_rbc", BONUS, ["demos -> bonus -> balance -> buffer"]),
        # A file keeps all columns.
        (
            "cartpole_bc",
            {**BONUS, "file": {"type": "npz_writer", "path": "rows.npz", "rows": 2000}},
            ["demos -> bonus -> buffer", "bonus -> file"],
        ),
    ],
)
def test_a_reward_model_is_sound_where_its_rewards_may_be_read(
    extends: str, nodes: dict[str, Any], edges: list[str]
) -> None:
    assert problems(extends, nodes, *edges) == []
