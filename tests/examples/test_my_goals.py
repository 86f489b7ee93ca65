"""The env with goals keeps gymnasium's rules, and is solved with hindsight only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from flowrl.api import load

GRAPH = Path(__file__).parents[2] / "examples" / "my_goals" / "bits.yaml"


@pytest.fixture
def bits(monkeypatch: Any) -> Any:
    """The module, imported as by the graph beside it."""
    monkeypatch.syspath_prepend(str(GRAPH.parent))
    return __import__("bits")


def test_the_env_keeps_the_rules_of_gymnasium(bits: Any) -> None:
    check_env(bits.Bits(), skip_render_check=True)


def test_an_episode_terminates_at_its_goal_or_is_truncated(bits: Any) -> None:
    env = bits.Bits(count=3)
    env.reset(seed=1)
    env.bits, env.goal = np.zeros(3, np.float32), np.array([1, 0, 1], np.float32)
    assert env.step(0)[1:4] == (-1.0, False, False)
    assert env.step(2)[1:4] == (0.0, True, False)
    env.reset(seed=1)
    env.bits, env.goal = np.zeros(3, np.float32), np.ones(3, np.float32)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]


def test_rewards_depend_on_whether_goals_are_reached(bits: Any) -> None:
    goals = np.array([[0, 1], [1, 1]], np.float32)
    assert bits.reward(goals, goals[::-1]).tolist() == [-1, -1]
    assert bits.reward(goals, goals).tolist() == [0, 0]
    assert bits.is_reached(goals, goals[:1]).tolist() == [True, False]


@pytest.mark.exhaustive
def test_the_graph_solves_the_env_with_hindsight_only(tmp_path: Path) -> None:
    solved = load(GRAPH).run(train_iters=2000, out=tmp_path / "her")
    assert solved.status == "solved"
    without = load(GRAPH, {"buffer.transforms": []}).run(train_iters=1200, out=tmp_path / "none")
    assert without.best_return is not None
    assert without.best_return < -9
