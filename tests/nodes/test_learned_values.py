"""Env, collector, buffer and learner without the engine, on problems whose values are known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.evaluators.evaluation import play_episodes
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policy import Policy
from tests.nodes.learn_modes import tensors

GAMMA = 0.5
# The states come in turns: V(0) = 1 + gamma V(1), and V(1) = 2 + gamma V(0) unless it is the end.
ENDLESS = [(1 + 2 * GAMMA) / (1 - GAMMA**2), (2 + GAMMA) / (1 - GAMMA**2)]
ENDING = [1 + 2 * GAMMA, 2.0]
# States are one-hot, so without hidden layers the network is a table.
TABLE: dict[str, Any] = {"hidden": []}


def envs_of(cls: str, count: int = 4, **kwargs: Any) -> SerialEnvManager:
    part = Gymnasium(id=f"tests.nodes.toy_envs:{cls}", kwargs=kwargs)
    return SerialEnvManager(env=part, count=count, seed=5)


def policy_of(cls: type[Policy], envs: SerialEnvManager, **params: Any) -> Policy:
    spec = envs.spec()
    return cls(obs=spec.obs, action=spec.action, gamma=GAMMA, **params)


@pytest.mark.slow
@pytest.mark.parametrize("nstep", [1, 2, 3])
@pytest.mark.parametrize(("ends", "values"), [("cut", ENDLESS), ("final", ENDING)])
def test_dqn_learns_the_values_of_truncated_and_of_terminated_episodes(
    ends: str, values: list[float], nstep: int
) -> None:
    envs = envs_of("AlternatingEnv", ends=ends)
    params = {"model": Mlp(**TABLE), "dueling": False, "lr": 0.06, "target": {"every_iters": 20}}
    policy = policy_of(Dqn, envs, nstep=nstep, epsilon={"end": 1.0}, **params)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=64, seed=1)
    buffer = NaiveReplayBuffer(batch_size=32, seed=1)
    learner = Learner(policy=policy, seed=1)
    buffer.push(collector.fire(learner.state()))
    for _ in range(200):
        learner.train(buffer.sample())
    q = learner.mode.q(torch.arange(2))["q"].detach().numpy()  # (states, actions)
    np.testing.assert_allclose(q, np.repeat([values], 2, 0).T, atol=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("gae_lambda", [0.0, 0.9])
@pytest.mark.parametrize(("ends", "values"), [("cut", ENDLESS), ("final", ENDING)])
def test_ppo_learns_the_values_of_truncated_and_of_terminated_episodes(
    ends: str, values: list[float], gae_lambda: float
) -> None:
    envs = envs_of("AlternatingEnv", ends=ends)
    model = Mlp(**TABLE, shared=False)
    policy = policy_of(Ppo, envs, model=model, gae_lambda=gae_lambda, lr=0.03, max_grad_norm=None)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=64, seed=2)
    learner = Learner(policy=policy, seed=2)
    for _ in range(40):
        learner.train(collector.fire(learner.state()))
    found = learner.mode.net(torch.arange(2))["value"].detach().numpy()
    np.testing.assert_allclose(found, values, atol=0.05)


@pytest.mark.parametrize("n_sample", [7, 64])
def test_a_token_that_ends_within_an_episode_does_not_change_ppos_values(n_sample: int) -> None:
    """With lambda 0, the same steps have the same advantages in tokens of every size."""
    envs = envs_of("AlternatingEnv", count=1, ends="cut")
    policy = policy_of(Ppo, envs, gae_lambda=0.0, normalise_advantages=False)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=n_sample, seed=3)
    learner = Learner(policy=policy, seed=3)
    batch = collector.fire(learner.state())
    advantage, goal, v_t = learner.mode.targets(tensors(batch))
    v = learner.mode.net(torch.arange(2))["value"].detach().numpy()
    wanted = np.where(batch["obs"] == 0, 1 + GAMMA * v[1], 2 + GAMMA * v[0])
    np.testing.assert_allclose(goal, wanted, rtol=1e-5)
    np.testing.assert_allclose(advantage, wanted - v[batch["obs"]], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(v_t, v[batch["obs"]], rtol=1e-5)


@pytest.mark.slow
def test_ppo_learns_to_aim_a_real_valued_action() -> None:
    """The best action is half of the observation, so a constant is not enough."""
    envs = envs_of("HalvingEnv", count=8)
    policy = policy_of(Ppo, envs, lr=3e-3, entropy_weight=0.0)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=256, seed=4)
    learner = Learner(policy=policy, seed=4)
    greedy = policy.eval_mode(0)

    def error() -> float:
        greedy.load(learner.state())
        played = play_episodes(envs_of("HalvingEnv", count=10), greedy, 200)
        return -float(np.mean([episode.total for episode in played]))

    before = error()  # the action is 0 at first, so the error is a quarter
    for _ in range(80):
        learner.train(collector.fire(learner.state()))
    assert before == pytest.approx(0.25, abs=0.05)
    assert error() < 0.06
