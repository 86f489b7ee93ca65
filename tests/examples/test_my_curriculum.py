"""The curriculum: its env keeps gymnasium's rules, and its graph solves it in every placement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

from flowrl.api import load

GRAPH = Path(__file__).parents[2] / "examples" / "my_curriculum" / "bridge.yaml"


@pytest.fixture
def bridge(monkeypatch: Any) -> Any:
    """The env's class, imported as by the graph beside it."""
    monkeypatch.syspath_prepend(str(GRAPH.parent))
    return __import__("bridge").Bridge


def test_the_env_keeps_the_rules_of_gymnasium(bridge: Any) -> None:
    check_env(bridge(), skip_render_check=True)


def test_the_options_of_reset_say_how_long_the_bridge_is(bridge: Any) -> None:
    env = bridge(planks=5)
    for options, length in [({"length": 2.4}, 2), (None, 5), ({"length": 99}, 5)]:
        env.reset(seed=1, options=options)
        steps = [env.step(env.right_actions[k]) for k in range(length)]
        assert [step[2] for step in steps] == [False] * (length - 1) + [True]
        assert steps[-1][1] == 1.0
    env.reset(seed=1)
    assert env.step(1 - env.right_actions[0])[1:3] == (0.0, True)


@pytest.mark.slow
def test_the_graph_solves_the_env_with_the_same_bits_in_every_placement(tmp_path: Path) -> None:
    serial = load(GRAPH).run(out=tmp_path / "s")
    other = load(GRAPH).run(out=tmp_path / "t", placement="evaluator=thread,envs=thread")
    assert serial.status == other.status == "solved"
    assert serial.digest == other.digest
    rows = [
        json.loads(line) for line in (tmp_path / "s" / "metrics.jsonl").read_text().splitlines()
    ]
    walked = [row["info/walked"] for row in rows if row["node"] == "evaluator"]
    assert walked[-1] == 16


@pytest.mark.exhaustive
def test_without_the_curriculum_twice_the_iterations_reach_nothing(tmp_path: Path) -> None:
    result = load(GRAPH, {"policy.reset_options": {}}).run(train_iters=400, out=tmp_path / "run")
    assert (result.status, result.best_return) == ("finished", 0.0)


def test_check_requires_the_evaluation_that_settings_depend_on() -> None:
    unconnected = load(
        {"extends": str(GRAPH), "edges": [{"evaluator.found -> learner.found": None}]}
    )
    assert [str(problem).partition(": ")[2] for problem in unconnected.check().problems] == [
        "policy.reset_options.length depends on 'info/walked', and the state input 'learner.found' "
        "is not connected; add 'evaluator.found -> learner.found: {lag: 1}'"
    ]
    by = {"by": "info/walkd", "points": [[0, 1], [16, 1]]}
    [misspelt] = load(GRAPH, {"policy.epsilon": by}).check().problems
    assert "policy.epsilon depends on 'info/walkd', which evaluator.found does not give" in str(
        misspelt
    )
    assert "did you mean 'info/walked'" in str(misspelt)


def test_check_refuses_options_for_the_envs_of_a_pool() -> None:
    graph = load(
        "cartpole_dqn",
        {"envs.type": "vector_env_manager", "policy.reset_options": {"length": 3}},
    )
    [problem] = graph.check().problems
    assert "the envs of a pool take no options of `reset`, and the policy has length" in str(
        problem
    )
