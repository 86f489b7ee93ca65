"""stable-baselines3 on CartPole-v1, with the settings of rl-baselines3-zoo; run by its Python."""

from __future__ import annotations

from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from bench.peers.protocol import ENV, EPISODES, Judge, Report, main

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
# Of each: the class, envs, its settings, and the length of a run, which its schedules depend on.
KINDS = {"dqn": (DQN, 1, DQN_SETTINGS, 50_000), "ppo": (PPO, 8, PPO_SETTINGS, 100_000)}


class Evaluating(BaseCallback):
    """Asks the judge before each rollout: there the weights have just changed."""

    def __init__(self, judge: Judge) -> None:
        super().__init__()
        self.judge, self.over = judge, False
        self.envs = make_vec_env(
            ENV, n_envs=EPISODES
        )  # side by side, one episode each: the fastest

    def play(self, seed: int) -> float:
        self.envs.seed(seed)
        return evaluate_policy(self.model, self.envs, n_eval_episodes=EPISODES)[0]

    def _on_rollout_start(self) -> None:
        self.over = self.judge.over(self.num_timesteps, self.play)

    def _on_step(self) -> bool:
        return not self.over

    def _on_training_end(self) -> None:
        self.judge.over(self.num_timesteps, self.play)


def solve(what: str, seed: int, cap_s: float) -> Report:
    """One run."""
    judge = Judge(cap_s)
    kind, count, settings, length_steps = KINDS[what]
    envs = make_vec_env(ENV, n_envs=count, seed=seed)
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    model.learn(length_steps, callback=Evaluating(judge))
    return judge.report(model.num_timesteps)


if __name__ == "__main__":
    main(solve)
