"""The flat settings of a graph are the keys of `--set`."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowrl.api import load
from flowrl.graph.bundled import bundled_graphs
from flowrl.graph.model import Graph
from flowrl.graph.settings import graph_settings, policy_settings


def graph(name: str, **changes: object) -> Graph:
    return load(name, changes).check(envs="skip").require_sound().graph


def test_what_nodes_share_is_listed_once() -> None:
    found = graph_settings(graph("cartpole_dqn"))
    assert found["policy.lr"] == 0.002
    assert found["policy.type"] == "dqn"
    assert found["policy.model.hidden"] == "[128, 128]"
    assert found["env.id"] == "CartPole-v1"
    assert found["collector.n_sample"] == 256
    assert found["evaluator.weights.every"] == 96
    assert not [key for key in found if key.startswith(("learner.policy", "envs.env"))]


def test_a_part_that_a_node_has_for_itself_is_listed_there() -> None:
    found = graph_settings(graph("cartpole_dqn", **{"evaluator.policy": "random"}))
    assert found["evaluator.policy.type"] == "random"
    assert found["policy.type"] == "dqn"


@pytest.mark.parametrize("name", ["cartpole_dqn_per", "minigrid_ppo", "pendulum_ppo"])
def test_every_setting_can_be_set(name: str) -> None:
    found = graph_settings(graph(name))
    plain = {k: v for k, v in found.items() if isinstance(v, int | float) and k != "seed"}
    assert len(plain) > 10
    assert graph_settings(graph(name, **plain)) == found


@pytest.mark.parametrize("name", bundled_graphs())
def test_every_setting_is_a_plain_value(name: str) -> None:
    for key, value in graph_settings(graph(name)).items():
        assert isinstance(value, bool | int | float | str), key


def test_the_settings_of_policies_are_those_of_the_resolved_graph(tmp_path: Path) -> None:
    """A run continues with its resolved graph, which has no sections, and its checkpoints stay the same."""
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(load("cartpole_dqn").expand())
    found = policy_settings(graph("cartpole_dqn"))
    assert found["learner.policy.lr"] == 0.002
    assert policy_settings(graph(str(resolved))) == found
