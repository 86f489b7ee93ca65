"""The env of several agents keeps PettingZoo's rules, and its graph solves it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl

FOLDER = Path(__file__).parents[2] / "examples" / "my_agents"


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The env's class, imported as by the graph beside it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return __import__("queue_env").Queue


def test_the_env_passes_pettingzoos_test(queue: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from other envs, which the module imports
        from pettingzoo.test import parallel_api_test
    parallel_api_test(queue(), num_cycles=200)


def test_agents_cannot_pass_each_other_and_leave_by_the_door(queue: Any) -> None:
    env = queue(walkers=2, length=2)
    env.reset(seed=0)
    env.positions = {"walker_0": 0, "walker_1": 1}
    _, rewards, terminated, _, _ = env.step({"walker_0": 2, "walker_1": 1})
    assert rewards == {"walker_0": -0.05, "walker_1": -0.01}
    assert not any(terminated.values())
    obs, rewards, terminated, _, _ = env.step({"walker_0": 1, "walker_1": 2})
    assert rewards["walker_1"] == 0.99
    assert terminated == {"walker_0": False, "walker_1": True}
    assert env.agents == ["walker_0"]
    np.testing.assert_array_equal(obs["walker_0"], [0, 0, 0])


@pytest.mark.slow
def test_the_graph_solves_the_env(tmp_path: Path) -> None:
    result = flowrl.load(FOLDER / "queue.yaml").run(out=tmp_path / "run")
    assert result.status == "solved"
    assert result.eval_return > 0.94
