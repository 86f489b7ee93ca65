"""stable-baselines3's PPO under the protocol of `bench training`, with its default networks.

These are two layers of 64, and for images the network of Mnih et al. 2015.
"""

from __future__ import annotations

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from bench.peers.training_protocol import EPOCHS, GAME, STEPS, Load, Train, main


def make_training(load: Load) -> Train:
    torch.set_num_threads(1)
    policy = "CnnPolicy" if load.images else "MlpPolicy"
    sizes = {"n_steps": STEPS, "batch_size": load.minibatch_size, "n_epochs": EPOCHS}
    model = PPO(policy, make_envs(load), device="cpu", seed=0, **sizes)
    return lambda: model.learn(load.rows, reset_num_timesteps=False)


def make_envs(load: Load):
    if not load.images:
        return make_vec_env("CartPole-v1", n_envs=load.envs, seed=0)
    import ale_py  # registers its envs; CartPole does not need it

    assert ale_py
    game = {"frameskip": 1, "repeat_action_probability": 0.0}
    envs = make_atari_env(GAME, n_envs=load.envs, seed=0, env_kwargs=game)
    return VecFrameStack(envs, n_stack=4)


if __name__ == "__main__":
    main({"dummy": make_training})
