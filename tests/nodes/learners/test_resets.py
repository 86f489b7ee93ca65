"""A learner that a league tells to begin again learns from its first weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Batch
from flowrl.core.state import State
from flowrl.nodes.collectors.match_collector import MatchCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.policies.ppo import Ppo

GAME = "tests.nodes.league.games:MatrixGame"


def told(resets: int) -> State:
    return State({}, {"resets": float(resets)})


@pytest.fixture
def setting() -> tuple[Any, list[Batch]]:
    """A policy, and rows that it has collected."""
    envs = SerialEnvManager(env=PettingZoo(id=GAME, agents="shared"), count=2)
    policy = Ppo(obs=envs.spec().obs, action=envs.spec().action)
    collector = MatchCollector(envs=envs, policy=policy)
    weights = Learner(policy=policy, seed=1).state()
    return policy, [collector.collect(weights=weights)[0] for _ in range(3)]


def assert_equal(one: Learner, other: Learner) -> None:
    found, expected = one.state().arrays, other.state().arrays
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


def test_it_begins_again_once_when_it_is_told(setting: Any) -> None:
    policy, (first, second, third) = setting
    again, anew = Learner(policy=policy), Learner(policy=policy)
    again.fire(first, None, told(0))
    again.fire(second, None, told(1))
    anew.fire(second)
    assert_equal(again, anew)
    again.fire(third, None, told(1))
    anew.fire(third)
    assert_equal(again, anew)
    assert again.train_iter == 3
    assert (again.command["resets"], "resets" in anew.command) == (1.0, False)


def test_it_remembers_how_often_it_has_begun_again(setting: Any) -> None:
    policy, (first, second, _) = setting
    learner, loaded = Learner(policy=policy), Learner(policy=policy)
    learner.fire(first, None, told(2))
    loaded.load_state_dict(learner.state_dict())
    for one in (learner, loaded):
        one.fire(second, None, told(2))
    assert_equal(learner, loaded)
    assert loaded.command["resets"] == 2


def test_it_begins_again_with_its_checkpoint(setting: Any, tmp_path: Path) -> None:
    policy, (first, second, third) = setting
    trained = Learner(policy=policy, seed=5)
    trained.fire(first)
    trained.save(tmp_path / "first.safetensors")
    begin_with = str(tmp_path / "first.safetensors")
    again = Learner(policy=policy, begin_with=begin_with)
    again.fire(second)
    again.fire(third, None, told(1))
    trained.fire(third)
    assert_equal(again, trained)
