"""stable-baselines3: its worker processes and its buffer, in its loop of off-policy collecting."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import SubprocVecEnv

from bench.peers.sleeping import ENVS, SAMPLES, Collect, Size, Sleeper, main
from bench.peers.sleeping_gymnasium import Sleeping


def make(
    mode: str, sleeper: Callable[[int], Sleeper], think: Callable[[], None], size: Size, seed: int
) -> Collect:
    """All envs step together (`sync`): it has no other way."""
    envs = SubprocVecEnv(
        [functools.partial(Sleeping, functools.partial(sleeper, i)) for i in range(ENVS)]
    )
    space = gymnasium.spaces.Box(-10, 10, (size.obs,), np.float32)
    buffer = ReplayBuffer(20_000, space, envs.action_space, "cpu", n_envs=ENVS)
    seen: Any = envs.reset()

    def collect() -> int:
        nonlocal seen
        for _ in range(-(-SAMPLES // ENVS)):
            think()
            actions = np.zeros(ENVS, np.int64)
            obs, rewards, dones, infos = envs.step(actions)
            after = obs.copy()
            for i in np.flatnonzero(dones):
                after[i] = infos[i]["terminal_observation"]
            buffer.add(seen, after, actions, rewards, dones, infos)
            seen = obs
        return SAMPLES

    return collect


if __name__ == "__main__":
    main(make)
