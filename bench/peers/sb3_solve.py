"""stable-baselines3 with the settings of rl-baselines3-zoo, under the protocol of `bench solve` and `bench learn`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import stable_baselines3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise

from bench.peers.solve_protocol import Report, RunMonitor, Task, main, task_of

CARTPOLE_DQN = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
CARTPOLE_PPO = {
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "ent_coef": 0.0,
    "learning_rate": lambda left: left * 1e-3,
    "clip_range": lambda left: left * 0.2,
}
PENDULUM_TD3 = {
    "gamma": 0.98,
    "buffer_size": 200_000,
    "learning_starts": 10_000,
    "action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.1)),
    "gradient_steps": 1,
    "train_freq": 1,
    "learning_rate": 1e-3,
    "policy_kwargs": {"net_arch": [400, 300]},
}
LUNARLANDER_DQN = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}
LUNARLANDER_PPO = {
    "n_steps": 1024,
    "batch_size": 64,
    "gae_lambda": 0.98,
    "gamma": 0.999,
    "n_epochs": 4,
    "ent_coef": 0.01,
}
# The class, the number of envs, the settings, and the env steps of a run, on which schedules depend.
ALGORITHMS: Mapping[str, tuple[str, int, Mapping[str, Any], int]] = {
    "cartpole_dqn": ("DQN", 1, CARTPOLE_DQN, 50_000),
    "cartpole_ppo": ("PPO", 8, CARTPOLE_PPO, 100_000),
    "cartpole_a2c": ("A2C", 8, {"ent_coef": 0.0}, 500_000),
    "pendulum_sac": ("SAC", 1, {"learning_rate": 1e-3}, 20_000),
    "pendulum_td3": ("TD3", 1, PENDULUM_TD3, 20_000),
    "lunarlander_dqn": ("DQN", 1, LUNARLANDER_DQN, 100_000),
    "lunarlander_ppo": ("PPO", 16, LUNARLANDER_PPO, 1_000_000),
    "hopper_sac": ("SAC", 1, {"learning_starts": 10_000}, 100_000),
}


class EvaluationCallback(BaseCallback):
    """Lets the monitor evaluate before each rollout, because the weights have just changed."""

    def __init__(self, task: Task, monitor: RunMonitor) -> None:
        super().__init__()
        self.monitor, self.is_over, self.episodes = monitor, False, task.episodes
        # one episode in each env, side by side, is the fastest way
        self.envs = make_vec_env(task.env, n_envs=task.episodes)

    def evaluate(self, seed: int) -> float:
        self.envs.seed(seed)
        return float(evaluate_policy(self.model, self.envs, n_eval_episodes=self.episodes)[0])

    def _on_rollout_start(self) -> None:
        self.is_over = self.monitor.is_over(self.num_timesteps, self.evaluate)

    def _on_step(self) -> bool:
        return not self.is_over

    def _on_training_end(self) -> None:
        self.monitor.is_over(self.num_timesteps, self.evaluate)


def solve(kind: str, seed: int, time_limit_s: float, library: Any = stable_baselines3) -> Report:
    """Do one run."""
    task = task_of(kind)
    monitor = RunMonitor(task, time_limit_s)
    model_class, count, settings, run_steps = ALGORITHMS[kind]
    envs = make_vec_env(task.env, n_envs=count, seed=seed)
    made = getattr(library, model_class)
    model = made("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    model.learn(run_steps, callback=EvaluationCallback(task, monitor))
    return monitor.report(model.num_timesteps)


if __name__ == "__main__":
    main(solve)
