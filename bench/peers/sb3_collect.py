"""stable-baselines3's worker processes and buffer, in a loop like its off-policy collecting, in the experiment
of `bench collector`."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import SubprocVecEnv

from bench.peers.sleep_experiment import ENVS, SAMPLES, Collect, Infer, MakeEnv, Size, main
from bench.peers.sleep_gymnasium import SleepingGymnasiumEnv


def make_collect(mode: str, make_env: MakeEnv, infer: Infer, size: Size, seed: int) -> Collect:
    """All envs step together (`sync`), which is the only mode that the library has."""
    makers = [functools.partial(make_env, i) for i in range(ENVS)]
    envs = SubprocVecEnv([functools.partial(SleepingGymnasiumEnv, make) for make in makers])
    space = gymnasium.spaces.Box(-10, 10, (size.obs,), np.float32)
    buffer = ReplayBuffer(20_000, space, envs.action_space, "cpu", n_envs=ENVS)
    obs: Any = envs.reset()

    def collect() -> int:
        nonlocal obs
        for _ in range(-(-SAMPLES // ENVS)):
            infer()
            actions = np.zeros(ENVS, np.int64)
            new_obs, rewards, dones, infos = envs.step(actions)
            next_obs = new_obs.copy()
            for i in np.flatnonzero(dones):
                next_obs[i] = infos[i]["terminal_observation"]
            buffer.add(obs, next_obs, actions, rewards, dones, infos)
            obs = new_obs
        return SAMPLES

    return collect


if __name__ == "__main__":
    main(make_collect)
