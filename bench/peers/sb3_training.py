"""stable-baselines3's PPO under the protocol of `bench training`, with its default network of two layers of 64."""

from __future__ import annotations

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from bench.peers.training_protocol import EPOCHS, STEPS, Load, Train, main


def make_training(load: Load) -> Train:
    torch.set_num_threads(1)
    envs = make_vec_env("CartPole-v1", n_envs=load.envs, seed=0)
    sizes = {"n_steps": STEPS, "batch_size": load.minibatch_size, "n_epochs": EPOCHS}
    model = PPO("MlpPolicy", envs, device="cpu", seed=0, **sizes)
    return lambda: model.learn(load.rows, reset_num_timesteps=False)


if __name__ == "__main__":
    main({"dummy": make_training})
