"""The example of agents that share a policy: its env keeps to PettingZoo's rules, its graph learns."""

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
    """The env's class, as a graph beside it imports it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return __import__("queue_env").Queue


def test_its_env_passes_pettingzoos_own_test(queue: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other envs, which that module imports
        from pettingzoo.test import parallel_api_test
    parallel_api_test(queue(), num_cycles=200)


def test_nobody_passes_another_and_who_is_at_the_door_leaves(queue: Any) -> None:
    env = queue(walkers=2, length=2)
    env.reset(seed=0)
    env.at = {"walker_0": 0, "walker_1": 1}
    _, rewards, left, _, _ = env.step({"walker_0": 2, "walker_1": 1})
    assert (rewards, any(left.values())) == ({"walker_0": -0.05, "walker_1": -0.01}, False)
    seen, rewards, left, _, _ = env.step({"walker_0": 1, "walker_1": 2})
    assert (rewards["walker_1"], left) == (0.99, {"walker_0": False, "walker_1": True})
    assert env.agents == ["walker_0"]
    np.testing.assert_array_equal(seen["walker_0"], [0, 0, 0])


def test_its_agents_learn_to_leave(tmp_path: Path) -> None:
    end = flowrl.load(FOLDER / "queue.yaml").run(out=tmp_path / "run")
    assert end.status == "solved"
    assert end.eval_return > 0.94
