"""Truncation bootstraps and termination does not: learned values against those in closed form.

Two states come in turns, worth 1 and 2: V(0) = 1 + gamma V(1), and V(1) = 2 + gamma V(0) where the episode
is merely cut off, V(1) = 2 where it is over. Through every collector, algorithm and way of cutting.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.sequence_replay_buffer import SequenceReplayBuffer
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.subprocess_env_managers import SyncSubprocessEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.wrappers.episodes import TimeLimit
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.r2d2 import R2d2
from flowrl.nodes.policy import Policy
from tests.quick_selection import exhaustive_except

GAMMA = 0.5
ENDLESS = [(1 + 2 * GAMMA) / (1 - GAMMA**2), (2 + GAMMA) / (1 - GAMMA**2)]
ENDING = [1 + 2 * GAMMA, 2.0]
VALUES = {"cut": ENDLESS, "final": ENDING}
COLLECTORS: dict[str, Callable[..., Any]] = {
    "samples": lambda **given: SampleCollector(n_sample=64, **given),
    "samples, across episodes": lambda **given: SampleCollector(n_sample=61, **given),
    "samples, in halves": lambda **given: SampleCollector(n_sample=64, stepping="halves", **given),
    "samples, as ready": lambda **given: SampleCollector(n_sample=64, stepping="ready", **given),
    "episodes": lambda **given: EpisodeCollector(n_episode=32, **given),
    "episodes, as ready": lambda **given: EpisodeCollector(n_episode=32, stepping="ready", **given),
}
# Ways to end an episode of AlternatingEnv after two steps, beside its own.
CUTS: dict[str, dict[str, Any]] = {
    "max_episode_steps": {"kwargs": {"ends": "never"}, "max_episode_steps": 2},
    "a wrapper": {"kwargs": {"ends": "never"}, "wrappers": (TimeLimit(steps=2),)},
}


def envs_of(**env: Any) -> SerialEnvManager:
    return SerialEnvManager(
        env=Gymnasium(id="tests.nodes.toy_envs:AlternatingEnv", **env), count=4, seed=5
    )


def learned_by_dqn(collect: Callable[..., Any], envs: Any, nstep: int) -> Any:
    spec = envs.spec()
    table = {"model": Mlp(hidden=[]), "dueling": False, "lr": 0.05, "target": {"every_iters": 10}}
    policy = Dqn(
        obs=spec.obs, action=spec.action, gamma=GAMMA, nstep=nstep, epsilon={"end": 1.0}, **table
    )
    learner = Learner(policy=policy, seed=1)
    collector = collect(envs=envs, policy=policy, seed=1)
    for _ in range(120):
        learner.train(collector.fire(learner.state()))
    return learner.mode.q(torch.arange(2))["q"].detach().numpy().mean(1)


def learned_by_ppo(collect: Callable[..., Any], envs: SerialEnvManager, nstep: int) -> Any:
    spec = envs.spec()
    model = Mlp(hidden=[], shared=False)
    params: dict[str, Any] = {"gae_lambda": 0.9, "lr": 0.03, "max_grad_norm": None}
    policy: Policy = Ppo(obs=spec.obs, action=spec.action, gamma=GAMMA, model=model, **params)
    learner = Learner(policy=policy, seed=2)
    collector = collect(envs=envs, policy=policy, seed=2)
    for _ in range(40):
        learner.train(collector.fire(learner.state()))
    return learner.mode.net(torch.arange(2))["value"].detach().numpy()


def learned_by_gru(collect: Callable[..., Any], envs: SerialEnvManager) -> Any:
    spec = envs.spec()
    params: dict[str, Any] = {"gae_lambda": 0.9, "lr": 0.02, "max_grad_norm": None}
    model = Gru(size=8, hidden=[])
    policy: Policy = Ppo(
        obs=spec.obs, action=spec.action, gamma=GAMMA, model=model, unroll_steps=8, **params
    )
    learner = Learner(policy=policy, seed=3)
    collector = collect(envs=envs, policy=policy, seed=3)
    for _ in range(60):
        learner.train(collector.fire(learner.state()))
    begins = torch.tensor([[True, False]])
    heads = learner.mode.net.module(torch.arange(2), torch.zeros(1, 8), begins)
    return heads["value"].detach().numpy()


def learned_from(buffer: Any, nstep: int, ends: str) -> Any:
    """The values that DQN learns from a buffer's batches."""
    envs = envs_of(kwargs={"ends": ends})
    spec = envs.spec()
    table = {"model": Mlp(hidden=[]), "dueling": False, "lr": 0.05, "target": {"every_iters": 10}}
    policy = Dqn(
        obs=spec.obs, action=spec.action, gamma=GAMMA, nstep=nstep, epsilon={"end": 1.0}, **table
    )
    learner = Learner(policy=policy, seed=1)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=61, seed=1)
    for _ in range(120):
        buffer.push(collector.fire(learner.state()))
        learned = learner.train(buffer.sample())
        if learned is not None and hasattr(buffer, "update"):
            buffer.update(learned["priority"])
    return learner.mode.q(torch.arange(2))["q"].detach().numpy().mean(1)


def learned_by_r2d2(collect: Callable[..., Any], envs: SerialEnvManager) -> Any:
    spec = envs.spec()
    table = {
        "model": Gru(size=8, hidden=[]),
        "dueling": False,
        "lr": 0.03,
        "target": {"every_iters": 10},
    }
    sequences = {"unroll_steps": 8, "target_steps": 2, "rescale": False}
    policy = R2d2(
        obs=spec.obs, action=spec.action, gamma=GAMMA, epsilon={"end": 1.0}, **table, **sequences
    )
    buffer = SequenceReplayBuffer(
        size=2000, batch_size=32, unroll_steps=8, memory_columns=["memory"], seed=4
    )
    learner = Learner(policy=policy, seed=1)
    collector = collect(envs=envs, policy=policy, seed=1)
    for _ in range(100):
        buffer.push(collector.fire(learner.state()))
        priorities: Any = learner.train(buffer.sample())
        buffer.update(priorities["priority"])
    begins = torch.tensor([[True, False]])
    heads = learner.mode.q.module(torch.arange(2), torch.zeros(1, 8), begins)
    return heads["q"].detach().numpy().mean(1)


LEARNERS = {
    "dqn": (learned_by_dqn, 1),
    "dqn, 3 steps": (learned_by_dqn, 3),
    "ppo": (learned_by_ppo, 1),
}
RECURRENT_LEARNERS = {"ppo": learned_by_gru, "r2d2": learned_by_r2d2}
BUFFERS: dict[str, Callable[[], Any]] = {
    "uniform": lambda: NaiveReplayBuffer(size=1000, batch_size=32, seed=4),
    "prioritised": lambda: AdvancedReplayBuffer(size=1000, batch_size=32, seed=4),
    "frames once": lambda: NaiveReplayBuffer(size=1000, batch_size=32, store_once=True, seed=4),
}


QUICK = [
    *itertools.product(["samples"], LEARNERS, VALUES),
    *((collector, "dqn", "cut") for collector in COLLECTORS if collector != "samples"),
    ("episodes", "ppo", "final"),
]


@pytest.mark.parametrize(
    ("collector", "learner", "ends"), exhaustive_except(QUICK, COLLECTORS, LEARNERS, VALUES)
)
def test_learned_values_equal_those_of_the_problem(collector: str, learner: str, ends: str) -> None:
    learn, nstep = LEARNERS[learner]
    found = learn(COLLECTORS[collector], envs_of(kwargs={"ends": ends}), nstep)
    np.testing.assert_allclose(found, VALUES[ends], atol=0.08)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("collector", "learner", "ends"),
    exhaustive_except(
        [
            ("samples", "ppo", "cut"),
            ("samples, in halves", "r2d2", "cut"),
            ("samples, as ready", "ppo", "final"),
        ],
        ["samples", "samples, in halves", "samples, as ready"],
        RECURRENT_LEARNERS,
        VALUES,
    ),
)
def test_learned_values_of_recurrent_policies_equal_those_of_the_problem(
    collector: str, learner: str, ends: str
) -> None:
    # The value after a truncation depends on more memory than any episode has. Half of the envs continue,
    # so that the value of such memory is learned.
    each = [{"ends": ends}, {"ends": "never" if ends == "cut" else ends}]
    found = RECURRENT_LEARNERS[learner](COLLECTORS[collector], envs_of(each=each))
    np.testing.assert_allclose(found, VALUES[ends], atol=0.12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("buffer", "nstep", "ends"),
    exhaustive_except(
        [
            ("uniform", 1, "cut"),
            ("uniform", 3, "final"),
            ("prioritised", 3, "cut"),
            ("prioritised", 1, "final"),
            ("frames once", 3, "cut"),
            ("frames once", 1, "final"),
        ],
        BUFFERS,
        [1, 3],
        VALUES,
    ),
)
def test_values_learned_from_every_buffer_equal_those_of_the_problem(
    buffer: str, nstep: int, ends: str
) -> None:
    found = learned_from(BUFFERS[buffer](), nstep, ends)
    np.testing.assert_allclose(found, VALUES[ends], atol=0.08)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pre_reset", "ends"),
    exhaustive_except([(False, "cut"), (True, "final")], [False, True], VALUES),
)
def test_values_learned_with_worker_processes_equal_those_of_the_problem(
    pre_reset: bool, ends: str
) -> None:
    env = Gymnasium(id="tests.nodes.toy_envs:AlternatingEnv", kwargs={"ends": ends})
    envs = SyncSubprocessEnvManager(env=env, count=4, seed=5, pre_reset=pre_reset)
    try:
        found = learned_by_dqn(COLLECTORS["samples, in halves"], envs, 3)
    finally:
        envs.close()
    np.testing.assert_allclose(found, VALUES[ends], atol=0.08)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "learner"),
    exhaustive_except(
        [("max_episode_steps", "dqn, 3 steps"), ("a wrapper", "ppo"), ("a wrapper", "dqn")],
        CUTS,
        LEARNERS,
    ),
)
def test_every_way_of_cutting_bootstraps(cut: str, learner: str) -> None:
    learn, nstep = LEARNERS[learner]
    found = learn(COLLECTORS["samples"], envs_of(**CUTS[cut]), nstep)
    np.testing.assert_allclose(found, ENDLESS, atol=0.08)
