"""An env manager that is saved: its episodes are played again, and go on as if nothing had been."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.envs.base_env_manager import BaseEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.policies.random import Random


def manager(id: str = "CartPole-v1", count: int = 3, **kwargs: Any) -> BaseEnvManager:
    return BaseEnvManager(env=Gymnasium(id=id, kwargs=kwargs), count=count, seed=4)


def actions(envs: BaseEnvManager, n: int, seed: int) -> list[Any]:
    column = envs.spec().action
    mode = Random(obs=envs.spec().obs, action=column).collect_mode(seed)
    return [mode.forward(np.zeros(envs.spec().count))["action"] for _ in range(n)]


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "Acrobot-v1"])
@pytest.mark.parametrize("steps", [0, 1, 37])
def test_it_goes_on_from_there(id: str, steps: int) -> None:
    envs, other = manager(id), manager(id)
    envs.reset()
    for action in actions(envs, steps, 0):
        envs.advance(action)
    other.load_state_dict(envs.state_dict())
    assert other.state_dict()["actions"].tolist() == envs.state_dict()["actions"].tolist()
    for action in actions(envs, 120, 1):
        a, b = envs.advance(action), other.advance(action)
        assert a.episodes == b.episodes
        assert all(np.array_equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))


def test_envs_that_are_stepped_apart_are_saved_too() -> None:
    envs, other = manager(), manager()
    envs.reset()
    for k, action in enumerate(actions(envs, 30, 0)):
        ids = np.array([[0], [1, 2], [2, 0]][k % 3])
        envs.advance(action[: len(ids)], ids)
    other.load_state_dict(envs.state_dict())
    for action in actions(envs, 40, 1):
        assert np.array_equal(envs.advance(action).obs, other.advance(action).obs)


def test_one_that_has_not_begun_is_saved_as_that() -> None:
    envs, other = manager(), manager()
    other.reset()
    other.load_state_dict(envs.state_dict())
    assert np.array_equal(other.reset(), envs.reset())


def test_a_collector_and_its_envs_go_on_with_the_same_rows() -> None:
    def collector(envs: BaseEnvManager) -> SampleCollector:
        spec = envs.spec()
        policy = Random(obs=spec.obs, action=spec.action)
        return SampleCollector(envs=envs, policy=policy, n_sample=20, seed=1)

    node = collector(manager())
    for _ in range(5):
        node.collect()
    other = collector(manager())
    other.envs.load_state_dict(node.envs.state_dict())
    other.load_state_dict(node.state_dict())
    for _ in range(10):
        a, b = node.collect(), other.collect()
        assert all(np.array_equal(a[name], b[name]) for name in a)


def test_an_env_that_does_not_keep_to_its_seed_is_not_restored() -> None:
    envs = manager("tests.nodes.toy_envs:Unseeded", count=1)
    envs.reset()
    for action in actions(envs, 3, 0):
        envs.advance(action)
    with pytest.raises(ValueError, match="does not follow from its seed and actions"):
        manager("tests.nodes.toy_envs:Unseeded", count=1).load_state_dict(envs.state_dict())


def test_while_a_step_is_under_way_nothing_is_saved() -> None:
    envs = manager()
    envs.reset()
    envs.send(np.array([1]), np.array([0]))
    with pytest.raises(ValueError, match="steps are under way"):
        envs.state_dict()
