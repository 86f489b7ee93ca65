"""tianshou on CartPole-v1 with the settings of its own examples, under the protocol of `bench solve`."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import DQN, PPO
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

from bench.peers.solve_protocol import (
    ENV,
    EPISODES,
    EVAL_EVERY_STEPS,
    MAX_STEPS,
    Report,
    RunMonitor,
    main,
)

OBS, ACTIONS = (4,), 2
BUFFER_SIZE = 20_000


def make_envs(count: int) -> DummyVectorEnv:
    return DummyVectorEnv([lambda: gymnasium.make(ENV) for _ in range(count)])


def make_dqn() -> Any:
    """Make DQN as in examples/discrete/discrete_dqn.py, but with greedy evaluations."""
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=OBS, action_shape=ACTIONS, hidden_sizes=[128, 128, 128]),
        action_space=gymnasium.spaces.Discrete(ACTIONS),
        eps_training=0.1,
        eps_inference=0.0,
    )
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.9,
        n_step_return_horizon=3,
        target_update_freq=320,
    )


def make_dqn_trainer(algorithm: Any, collector: Any) -> Any:
    """Make a trainer that alternates 10 env steps and one gradient step."""
    settings = OffPolicyTrainerParams(
        training_collector=collector,
        epoch_num_steps=EVAL_EVERY_STEPS,
        collection_step_num_env_steps=10,
        update_step_num_gradient_steps_per_sample=0.1,
        batch_size=64,
        verbose=False,
        show_progress=False,
    )
    return algorithm.create_trainer(settings)


def make_ppo() -> Any:
    """Make PPO as in test/discrete/test_ppo_discrete.py."""
    net = Net(state_shape=OBS, hidden_sizes=[64, 64])
    actor = DiscreteActor(preprocess_net=net, action_shape=ACTIONS)
    critic = DiscreteCritic(preprocess_net=net)
    for module in ActorCritic(actor, critic).modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.orthogonal_(module.weight)
            torch.nn.init.zeros_(module.bias)
    policy = DiscreteActorPolicy(
        actor=actor,
        dist_fn=torch.distributions.Categorical,
        action_space=gymnasium.spaces.Discrete(ACTIONS),
        deterministic_eval=True,
    )
    return PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=3e-4),
        gamma=0.99,
        gae_lambda=0.95,
        max_grad_norm=0.5,
        eps_clip=0.2,
        vf_coef=0.5,
        ent_coef=0.0,
        advantage_normalization=False,
    )


def make_ppo_trainer(algorithm: Any, collector: Any) -> Any:
    """Make a trainer that alternates 2000 env steps and ten epochs of minibatches of 64."""
    settings = OnPolicyTrainerParams(
        training_collector=collector,
        epoch_num_steps=2000,
        collection_step_num_env_steps=2000,
        update_step_num_repetitions=10,
        batch_size=64,
        verbose=False,
        show_progress=False,
    )
    return algorithm.create_trainer(settings)


# How to make the algorithm and its trainer, and the number of envs.
ALGORITHMS = {"dqn": (make_dqn, make_dqn_trainer, 10), "ppo": (make_ppo, make_ppo_trainer, 20)}


def solve(name: str, seed: int, time_limit_s: float) -> Report:
    """Do one run, in which the trainer's epochs alternate with evaluations."""
    monitor = RunMonitor(time_limit_s)
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(seed)
    make_algorithm, make_trainer, count = ALGORITHMS[name]
    algorithm, train_envs, test_envs = make_algorithm(), make_envs(count), make_envs(EPISODES)
    train_envs.seed(seed)
    buffer = VectorReplayBuffer(BUFFER_SIZE, count)
    collector = Collector[CollectStats](algorithm, train_envs, buffer, exploration_noise=True)
    test_collector = Collector[CollectStats](algorithm, test_envs)

    def evaluate(seed: int) -> float:
        test_envs.seed(seed)
        played = test_collector.collect(n_episode=EPISODES, reset_before_collect=True)
        return float(played.returns.mean())

    trainer = make_trainer(algorithm, collector)
    trainer.reset()
    while collector.collect_step < MAX_STEPS:
        trainer.execute_epoch()
        if monitor.is_over(collector.collect_step, evaluate):
            break
    return monitor.report(collector.collect_step)


if __name__ == "__main__":
    main(solve)
