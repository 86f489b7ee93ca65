"""What a collector saves is whole: another one that loads it goes on with the same rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flowrl.core.state import State
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.random import Random
from flowrl.nodes.policy import Policy
from tests.nodes.collectors.recurrent_toy_policy import StepCountingPolicy
from tests.nodes.learn_modes import DISCRETE, OBS
from tests.nodes.scripted_envs import ScriptedEnvs
from tests.nodes.toy_policies import Toy, weights

LENGTHS = [[3, 5], [2], [7, 1]]


def samples(envs: Any, policy: type[Policy] = Toy, **params: Any) -> Any:
    spec = envs.spec()
    made = policy(obs=spec.obs, action=spec.action, nstep=2)
    return SampleCollector(envs=envs, policy=made, n_sample=8, **params)


def episodes(envs: Any) -> Any:
    spec = envs.spec()
    return EpisodeCollector(envs=envs, policy=Toy(obs=spec.obs, action=spec.action), n_episode=4)


@pytest.mark.parametrize(
    "make",
    [
        samples,
        episodes,
        lambda envs: samples(envs, StepCountingPolicy),
        lambda envs: samples(envs, StepCountingPolicy, stepping="halves"),
    ],
)
def test_another_collector_goes_on_from_there(make: Callable[[Any], Any]) -> None:
    envs = ScriptedEnvs(LENGTHS)
    node = make(envs)
    for _ in range(3):
        node.fire(weights(1))
    state, envs_then = copy.deepcopy(node.state_dict()), copy.deepcopy(envs)
    expected = [node.fire(weights(2)) for _ in range(3)]
    other = make(envs_then)
    other.load_state_dict(state)
    found = [other.fire(weights(2)) for _ in range(3)]
    for a, b in zip(expected, found, strict=True):
        assert set(a) == set(b)
        for name in set(a) - ({"logp"} if "memory" not in a else set()):  # the toy counts its acts
            assert np.array_equal(a[name], b[name]), name
    assert other.envstep == node.envstep


def test_what_is_under_way_is_waited_for_and_saved() -> None:
    envs = ScriptedEnvs(LENGTHS)
    node = samples(envs, stepping="ready")
    node.fire(weights(0))
    assert envs.sent
    state = node.state_dict()
    assert not envs.sent
    waits = int(node._pending_steps.counts.sum())
    other = samples(copy.deepcopy(envs), stepping="ready")
    other.load_state_dict(state)
    assert int(other._pending_steps.counts.sum()) == waits
    given = [tuple(s) for _ in range(4) for s in other.fire(weights(0))["obs"].tolist()]
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("policy", [Random, Dqn, Ppo])
def test_a_mode_that_draws_goes_on_drawing(policy: type[Policy]) -> None:
    described = policy(obs=OBS, action=DISCRETE)
    modes = [described.collect_mode(seed) for seed in (1, 2)]
    if policy is not Random:
        for mode in modes:
            mode.load(State(described.learn_mode(0).weights(), {"epsilon": 0.5, "lr": 1e-3}))
    obs = np.zeros((50, *OBS.shape), np.float32)
    modes[0].forward(obs)
    modes[1].load_state_dict(modes[0].state_dict())
    a, b = (mode.forward(obs) for mode in modes)
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert len(set(a["action"].tolist())) > 1
