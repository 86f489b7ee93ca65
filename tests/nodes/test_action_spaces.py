"""Actions of every kind of space, from a policy through collector and env manager to the env."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Column
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.state import State
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.evaluators.evaluation import play_episodes
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.random import Random
from flowrl.nodes.policies.sac import Sac
from tests.nodes.learn_modes import learn_from

SPACES: dict[str, dict[str, Any]] = {
    "Discrete": {"n": 4},
    "MultiDiscrete": {"nvec": [3, 5]},
    "MultiBinary": {"n": 6},
    "Box": {"low": -2.0, "high": 3.0, "shape": (2, 2)},
}
DTYPES = {
    "Discrete": "int64",
    "MultiDiscrete": "int64",
    "MultiBinary": "int8",
    "Box": "float32",
}
every_space = pytest.mark.parametrize("space", SPACES)


def envs_of(space: str, count: int = 3) -> SerialEnvManager:
    kwargs = {"space": space, **SPACES[space]}
    part = Gymnasium(id="tests.nodes.toy_envs:SpaceCheckingEnv", kwargs=kwargs, max_episode_steps=5)
    return SerialEnvManager(env=part, count=count, seed=1)


def policy_of(cls: Any, envs: SerialEnvManager, **params: Any) -> Any:
    spec = envs.spec()
    return cls(obs=spec.obs, action=spec.action, **params)


@every_space
def test_the_action_of_a_row_is_the_one_that_the_env_got(space: str) -> None:
    envs = envs_of(space)
    node = SampleCollector(envs=envs, policy=policy_of(Random, envs), n_sample=60, seed=1)
    batch = node.fire(None)
    seen = batch["next_obs"].reshape(batch["action"].shape)
    np.testing.assert_array_equal(batch["action"].astype(np.float32), seen)
    assert len(np.unique(batch["action"], axis=0)) > 3
    assert batch["action"].dtype == DTYPES[space]


@every_space
def test_rows_have_the_columns_described_before_the_run(space: str) -> None:
    envs = envs_of(space)
    known = Surroundings({}, {"envs": envs.spec()}, frozenset({"data"}))
    node = SampleCollector(envs=envs, policy=policy_of(Random, envs), n_sample=9, seed=1)
    facts = SampleCollector.describe(node.config, known)
    assert facts.outs["data"] == dict(node.fire(None).schema)


@every_space
def test_an_evaluation_plays_envs_of_every_space(space: str) -> None:
    envs = envs_of(space)
    played = play_episodes(envs, policy_of(Random, envs).eval_mode(0), 7)
    assert [(episode.env_id, episode.length) for episode in played] == [
        *[(0, 5)] * 3,
        *[(1, 5)] * 2,
        *[(2, 5)] * 2,
    ]


@every_space
def test_ppo_acts_and_learns_in_every_supported_space(space: str) -> None:
    envs = envs_of(space)
    policy = policy_of(Ppo, envs)
    mode = policy.learn_mode(0)
    node = SampleCollector(envs=envs, policy=policy, n_sample=60, seed=1)
    batch = node.fire(State(mode.weights()))
    seen = batch["next_obs"].reshape(batch["action"].shape)
    np.testing.assert_array_equal(batch["action"].astype(np.float32), seen)
    before = {name: array.copy() for name, array in mode.weights().items()}
    learned = learn_from(mode, batch)
    assert np.isfinite(float(learned.metrics["policy_loss"]))
    assert any(not np.array_equal(before[name], now) for name, now in mode.weights().items())


@pytest.mark.parametrize(
    ("cls", "space"),
    [(Dqn, "Box"), (Dqn, "MultiDiscrete"), (Dqn, "MultiBinary")],
)
def test_a_policy_refuses_unsupported_spaces_before_the_run(cls: Any, space: str) -> None:
    with pytest.raises(UnsoundError) as raised:
        policy_of(cls, envs_of(space))
    assert raised.value.key == "policy"
    assert raised.value.hint


@pytest.mark.parametrize(("low", "others"), [(0, "try ppo"), (-1, "wrap the env")])
@pytest.mark.parametrize("cls", [Sac, Dqn])
def test_a_policy_that_is_proposed_instead_can_choose(cls: Any, low: int, others: str) -> None:
    bounds = {"low": (low, low), "high": (2.0, 2.0)}
    spaces = {"obs": Column("float32", (2,)), "action": Column("int64", (2,), **bounds)}
    with pytest.raises(UnsoundError) as raised:
        cls(**spaces)
    assert raised.value.hint.startswith(others)
    if others == "try ppo":
        Ppo(**spaces)
    else:
        with pytest.raises(UnsoundError, match="wrap the env"):
            Ppo(**spaces)


def test_actions_of_another_shape_or_outside_of_the_space_are_errors() -> None:
    envs = envs_of("MultiDiscrete")
    envs.reset()
    with pytest.raises(ValueError, match="2 actions for 3 envs; give one for each"):
        envs.advance(np.zeros((2, 2), np.int64))
    with pytest.raises(Exception, match=r"is not in MultiDiscrete\(\[3 5\]\)"):
        envs.advance(np.full((3, 2), 4))
