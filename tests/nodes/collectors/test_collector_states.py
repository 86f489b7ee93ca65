"""A collector that loads a saved state continues with the same rows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flowrl.core.records import HistogramsRecord
from flowrl.core.saved_state import UnsavableStateError
from flowrl.core.state import Count, State
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


def sample_collector(
    envs: Any, policy: type[Policy] = Toy, n_sample: int = 8, **params: Any
) -> Any:
    spec = envs.spec()
    made = policy(obs=spec.obs, action=spec.action)
    return SampleCollector(envs=envs, policy=made, n_sample=n_sample, **params)


def episode_collector(envs: Any) -> Any:
    spec = envs.spec()
    return EpisodeCollector(envs=envs, policy=Toy(obs=spec.obs, action=spec.action), n_episode=4)


@pytest.mark.parametrize(
    "make",
    [
        sample_collector,
        episode_collector,
        lambda envs: sample_collector(envs, StepCountingPolicy),
        lambda envs: sample_collector(envs, StepCountingPolicy, stepping="halves"),
    ],
)
def test_a_restored_collector_continues_with_the_same_rows(make: Callable[[Any], Any]) -> None:
    envs = ScriptedEnvs(LENGTHS)
    node = make(envs)
    for _ in range(3):
        node.fire(weights(1))
    state, saved_envs = copy.deepcopy(node.state_dict()), copy.deepcopy(envs)
    expected = [node.fire(weights(2)) for _ in range(3)]
    other = make(saved_envs)
    other.load_state_dict(state)
    found = [other.fire(weights(2)) for _ in range(3)]
    for a, b in zip(expected, found, strict=True):
        assert set(a) == set(b)
        for name in set(a) - ({"logp"} if "memory" not in a else set()):  # the toy counts its calls
            assert np.array_equal(a[name], b[name]), name
    assert other.envstep == node.envstep


def test_pending_steps_are_received_and_saved() -> None:
    envs = ScriptedEnvs(LENGTHS)
    node = sample_collector(envs, n_sample=10, stepping="ready")
    node.fire(weights(0))
    assert envs.sent
    state = node.state_dict()
    assert not envs.sent
    pending_count = int(node.pending_steps.counts.sum())
    other = sample_collector(copy.deepcopy(envs), n_sample=10, stepping="ready")
    other.load_state_dict(state)
    assert int(other.pending_steps.counts.sum()) == pending_count
    steps = [tuple(s) for _ in range(4) for s in other.fire(weights(0))["obs"].tolist()]
    assert len(set(steps)) == len(steps)


def test_episodes_that_end_while_a_state_is_saved_are_counted_and_reported() -> None:
    envs = ScriptedEnvs(LENGTHS)
    node = sample_collector(envs, n_sample=10, stepping="ready", log_every_steps=1)
    counted = reported = saved = 0
    for _ in range(20):
        node.fire(weights(0))
        counted += (node.ctx.take_count() or Count()).episodes
        reported += sum(
            sum(record.histograms["return"].counts)
            for record in node.ctx.take_records()
            if isinstance(record, HistogramsRecord) and "return" in record.histograms
        )
        state = node.state_dict()
        saved += len(state["received_episodes"])
        node = sample_collector(envs, n_sample=10, stepping="ready", log_every_steps=1)
        node.load_state_dict(state)
    assert counted == reported
    assert saved > 0


@pytest.mark.parametrize("policy", [Random, Dqn, Ppo])
def test_a_restored_mode_continues_its_random_draws(policy: type[Policy]) -> None:
    instance = policy(obs=OBS, action=DISCRETE)
    modes = [instance.collect_mode(seed) for seed in (1, 2)]
    if policy is not Random:
        for mode in modes:
            mode.load(State(instance.learn_mode(0).weights(), {"epsilon": 0.5, "lr": 1e-3}))
    obs = np.zeros((50, *OBS.shape), np.float32)
    modes[0].forward(obs)
    modes[1].load_state_dict(modes[0].state_dict())
    a, b = (mode.forward(obs) for mode in modes)
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert len(set(a["action"].tolist())) > 1


class DrawingMode:
    """An act mode that draws random numbers, and does not save them."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def load(self, state: State) -> None:
        """It acts without weights."""

    def forward(self, obs: Any) -> Any:
        return {"action": self.rng.integers(2, size=len(obs))}


class DrawingPolicy(Toy):
    def collect_mode(self, seed: int) -> Any:
        return DrawingMode()


def test_a_mode_that_draws_and_saves_nothing_is_refused_when_the_collector_is_saved() -> None:
    node = sample_collector(ScriptedEnvs(LENGTHS), DrawingPolicy)
    with pytest.raises(UnsavableStateError, match=r"DrawingMode\.rng draws random .* no `state_d"):
        node.state_dict()
