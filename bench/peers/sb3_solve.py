"""stable-baselines3 on CartPole-v1 with the settings of rl-baselines3-zoo, under the protocol of `bench solve`."""

from __future__ import annotations

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from bench.peers.solve_protocol import ENV, EPISODES, Report, RunMonitor, main

DQN_SETTINGS = {
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
PPO_SETTINGS = {
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "ent_coef": 0.0,
    "learning_rate": lambda left: left * 1e-3,
    "clip_range": lambda left: left * 0.2,
}
# The class, the number of envs, the settings, and the env steps of a run, on which schedules depend.
ALGORITHMS = {"dqn": (DQN, 1, DQN_SETTINGS, 50_000), "ppo": (PPO, 8, PPO_SETTINGS, 100_000)}


class EvaluationCallback(BaseCallback):
    """Lets the monitor evaluate before each rollout, because the weights have just changed."""

    def __init__(self, monitor: RunMonitor) -> None:
        super().__init__()
        self.monitor, self.is_over = monitor, False
        # one episode in each env, side by side, is the fastest way
        self.envs = make_vec_env(ENV, n_envs=EPISODES)

    def evaluate(self, seed: int) -> float:
        self.envs.seed(seed)
        return evaluate_policy(self.model, self.envs, n_eval_episodes=EPISODES)[0]

    def _on_rollout_start(self) -> None:
        self.is_over = self.monitor.is_over(self.num_timesteps, self.evaluate)

    def _on_step(self) -> bool:
        return not self.is_over

    def _on_training_end(self) -> None:
        self.monitor.is_over(self.num_timesteps, self.evaluate)


def solve(algorithm: str, seed: int, time_limit_s: float) -> Report:
    """Do one run."""
    monitor = RunMonitor(time_limit_s)
    model_class, count, settings, run_steps = ALGORITHMS[algorithm]
    envs = make_vec_env(ENV, n_envs=count, seed=seed)
    model = model_class("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    model.learn(run_steps, callback=EvaluationCallback(monitor))
    return monitor.report(model.num_timesteps)


if __name__ == "__main__":
    main(solve)
