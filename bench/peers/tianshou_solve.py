"""tianshou with the settings of its own examples and tests, under the protocol of `bench solve` and `bench learn`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from tianshou.algorithm import A2C, C51, DQN, PPO, SAC, TD3
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, CollectStats, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.trainer import OffPolicyTrainerParams, OnPolicyTrainerParams
from tianshou.utils.net.common import ActorCritic, Net
from tianshou.utils.net.continuous import (
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

from bench.peers.solve_protocol import Report, RunMonitor, Task, main, task_of

Adam = AdamOptimizerFactory


@dataclass(frozen=True)
class Settings:
    """How an algorithm is made from its spaces, and how its trainer alternates env steps and updates."""

    make: Callable[[Any, Any], Any]
    envs: int
    collect_steps: int
    batch_size: int
    updates_per_step: float = 0.0  # of algorithms that replay
    repetitions: int = 0  # of on-policy algorithms
    buffer_size: int = 20_000
    random_steps: int = 0
    epsilon: Callable[[int], float] | None = None  # of the env steps so far


def make_dqn(obs: Any, action: Any) -> Any:
    """As in examples/discrete/discrete_dqn.py, but with greedy evaluations."""
    net = Net(state_shape=obs.shape, action_shape=action.n, hidden_sizes=[128, 128, 128])
    policy = DiscreteQLearningPolicy(
        model=net, action_space=action, eps_training=0.1, eps_inference=0.0
    )
    return DQN(
        policy=policy,
        optim=Adam(lr=1e-3),
        gamma=0.9,
        n_step_return_horizon=3,
        target_update_freq=320,
    )


def make_c51(obs: Any, action: Any) -> Any:
    """As in test/discrete/test_c51.py."""
    net = Net(
        state_shape=obs.shape,
        action_shape=action.n,
        hidden_sizes=[128, 128, 128, 128],
        softmax=True,
        num_atoms=51,
    )
    policy = C51Policy(
        model=net,
        action_space=action,
        num_atoms=51,
        v_min=-10.0,
        v_max=10.0,
        eps_training=0.1,
        eps_inference=0.0,
    )
    return C51(
        policy=policy,
        optim=Adam(lr=1e-3),
        gamma=0.9,
        n_step_return_horizon=3,
        target_update_freq=320,
    )


def make_lunarlander_dqn(obs: Any, action: Any) -> Any:
    """As in examples/box2d/lunarlander_dqn.py."""
    dueling = ({"hidden_sizes": [128, 128]}, {"hidden_sizes": [128, 128]})
    net = Net(
        state_shape=obs.shape, action_shape=action.n, hidden_sizes=[128, 128], dueling_param=dueling
    )
    policy = DiscreteQLearningPolicy(
        model=net, action_space=action, eps_training=0.73, eps_inference=0.0
    )
    return DQN(
        policy=policy,
        optim=Adam(lr=0.013),
        gamma=0.99,
        n_step_return_horizon=4,
        target_update_freq=500,
    )


def actor_critic(obs: Any, action: Any) -> tuple[Any, Any]:
    """A policy and a critic on shared orthogonal layers, as in test/discrete/test_ppo_discrete.py."""
    net = Net(state_shape=obs.shape, hidden_sizes=[64, 64])
    actor = DiscreteActor(preprocess_net=net, action_shape=action.n)
    critic = DiscreteCritic(preprocess_net=net)
    for module in ActorCritic(actor, critic).modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.orthogonal_(module.weight)
            torch.nn.init.zeros_(module.bias)
    policy = DiscreteActorPolicy(
        actor=actor,
        dist_fn=torch.distributions.Categorical,
        action_space=action,
        deterministic_eval=True,
    )
    return policy, critic


def make_ppo(obs: Any, action: Any) -> Any:
    """As in test/discrete/test_ppo_discrete.py."""
    policy, critic = actor_critic(obs, action)
    return PPO(
        policy=policy,
        critic=critic,
        optim=Adam(lr=3e-4),
        gamma=0.99,
        gae_lambda=0.95,
        max_grad_norm=0.5,
        eps_clip=0.2,
        vf_coef=0.5,
        ent_coef=0.0,
        advantage_normalization=False,
    )


def make_a2c(obs: Any, action: Any) -> Any:
    """As in test/discrete/test_a2c_with_il.py."""
    policy, critic = actor_critic(obs, action)
    return A2C(
        policy=policy,
        critic=critic,
        optim=Adam(lr=1e-3),
        gamma=0.9,
        gae_lambda=1.0,
        vf_coef=0.5,
        ent_coef=0.0,
    )


def make_sac(width: int, nstep: int) -> Callable[[Any, Any], Any]:
    """As in test/continuous/test_sac_with_il.py (128) and examples/mujoco/mujoco_sac.py (256)."""

    def make(obs: Any, action: Any) -> Any:
        hidden = [width, width]
        actor = ContinuousActorProbabilistic(
            preprocess_net=Net(state_shape=obs.shape, hidden_sizes=hidden),
            action_shape=action.shape,
            unbounded=True,
            conditioned_sigma=True,
        )
        alpha = AutoAlpha(-float(np.prod(action.shape)), 0.0, Adam(lr=3e-4))
        return SAC(
            policy=SACPolicy(actor=actor, action_space=action),
            policy_optim=Adam(lr=1e-3),
            critic=continuous_critic(obs, action, hidden),
            critic_optim=Adam(lr=1e-3),
            critic2=continuous_critic(obs, action, hidden),
            critic2_optim=Adam(lr=1e-3),
            alpha=alpha,
            n_step_return_horizon=nstep,
        )

    return make


def make_td3(obs: Any, action: Any) -> Any:
    """As in test/continuous/test_td3.py."""
    hidden = [128, 128]
    actor = ContinuousActorDeterministic(
        preprocess_net=Net(state_shape=obs.shape, hidden_sizes=hidden), action_shape=action.shape
    )
    policy = ContinuousDeterministicPolicy(
        actor=actor, exploration_noise=GaussianNoise(sigma=0.1), action_space=action
    )
    return TD3(
        policy=policy,
        policy_optim=Adam(lr=1e-4),
        critic=continuous_critic(obs, action, hidden),
        critic_optim=Adam(lr=1e-3),
        critic2=continuous_critic(obs, action, hidden),
        critic2_optim=Adam(lr=1e-3),
        n_step_return_horizon=3,
    )


def continuous_critic(obs: Any, action: Any, hidden: list[int]) -> Any:
    net = Net(state_shape=obs.shape, action_shape=action.shape, hidden_sizes=hidden, concat=True)
    return ContinuousCritic(preprocess_net=net)


def lunarlander_epsilon(env_steps: int) -> float:
    return max(0.73 * (1 - 5e-6) ** env_steps, 0.01)


ALGORITHMS = {
    "cartpole_dqn": Settings(make_dqn, 10, 10, 64, updates_per_step=0.1),
    "cartpole_ppo": Settings(make_ppo, 20, 2000, 64, repetitions=10),
    "cartpole_c51": Settings(make_c51, 8, 8, 64, updates_per_step=0.125),
    "cartpole_a2c": Settings(make_a2c, 16, 800, 64, repetitions=1),
    "pendulum_sac": Settings(make_sac(128, 3), 10, 10, 128, updates_per_step=0.125),
    "pendulum_td3": Settings(make_td3, 8, 8, 128, updates_per_step=0.125, random_steps=8 * 1000),
    "lunarlander_dqn": Settings(
        make_lunarlander_dqn,
        *(16, 16, 128, 0.0625),
        buffer_size=100_000,
        random_steps=128 * 16,
        epsilon=lunarlander_epsilon,
    ),
    "hopper_sac": Settings(
        make_sac(256, 1),
        1,
        1,
        256,
        updates_per_step=1.0,
        buffer_size=1_000_000,
        random_steps=10_000,
    ),
}


def make_envs(env: str, count: int) -> DummyVectorEnv:
    return DummyVectorEnv([lambda: gymnasium.make(env) for _ in range(count)])


def make_trainer(settings: Settings, task: Task, algorithm: Any, collector: Any) -> Any:
    """Make a trainer whose epochs end when the run is evaluated."""
    shared = {
        "training_collector": collector,
        "epoch_num_steps": max(task.eval_every_steps, settings.collect_steps),
        "collection_step_num_env_steps": settings.collect_steps,
        "batch_size": settings.batch_size,
        "verbose": False,
        "show_progress": False,
    }

    def set_epsilon(epoch: int, env_steps: int) -> None:
        if settings.epsilon is not None:
            algorithm.policy.set_eps_training(settings.epsilon(env_steps))

    if settings.repetitions:
        params: Any = OnPolicyTrainerParams(
            update_step_num_repetitions=settings.repetitions, **shared
        )
    else:
        params = OffPolicyTrainerParams(
            update_step_num_gradient_steps_per_sample=settings.updates_per_step,
            training_fn=set_epsilon,
            **shared,
        )
    return algorithm.create_trainer(params)


def solve(kind: str, seed: int, time_limit_s: float) -> Report:
    """Do one run, in which the trainer's epochs alternate with evaluations."""
    task, settings = task_of(kind), ALGORITHMS[kind]
    monitor = RunMonitor(task, time_limit_s)
    for set_seed in (random.seed, np.random.seed, torch.manual_seed):
        set_seed(seed)
    train_envs = make_envs(task.env, settings.envs)
    test_envs = make_envs(task.env, task.episodes)
    train_envs.seed(seed)
    algorithm = settings.make(train_envs.observation_space[0], train_envs.action_space[0])
    buffer = VectorReplayBuffer(settings.buffer_size, settings.envs)
    collector = Collector[CollectStats](algorithm, train_envs, buffer, exploration_noise=True)
    test_collector = Collector[CollectStats](algorithm, test_envs)
    if settings.random_steps and time_limit_s:
        collector.collect(n_step=settings.random_steps, random=True, reset_before_collect=True)

    def evaluate(seed: int) -> float:
        test_envs.seed(seed)
        played = test_collector.collect(n_episode=task.episodes, reset_before_collect=True)
        return float(played.returns.mean())

    trainer = make_trainer(settings, task, algorithm, collector)
    trainer.reset()
    while collector.collect_step < task.max_steps:
        trainer.execute_epoch()
        if monitor.is_over(collector.collect_step, evaluate):
            break
    return monitor.report(collector.collect_step)


if __name__ == "__main__":
    main(solve)
