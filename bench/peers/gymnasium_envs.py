"""gymnasium's vector envs, and EnvPool bare, as `env_protocol` measures them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from bench.peers.env_protocol import Load, Step, main

Made = tuple[Step, Callable[[], Any]]


def stepping(envs: Any, count: int, dtype: Any = np.int64) -> Made:
    """All at once."""

    def step(actions: Any) -> int:
        envs.step(actions.astype(dtype, copy=False))
        return count

    return step, envs.close


def bare_loop(load: Load) -> Made:
    """A loop as one writes it by hand: no columns, no seeds, no checks."""
    envs = [load.make() for _ in range(load.count)]
    for env in envs:
        env.reset()

    def step(actions: Any) -> int:
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return load.count

    return step, lambda: None


def sync(load: Load) -> Made:
    envs = gymnasium.vector.SyncVectorEnv([load.make] * load.count)
    envs.reset(seed=0)
    return stepping(envs, load.count)


def asynchronous(load: Load) -> Made:
    envs = gymnasium.vector.AsyncVectorEnv([load.make] * load.count, shared_memory=True)
    envs.reset(seed=0)
    return stepping(envs, load.count)


def vector(load: Load) -> Made | None:
    if load.env != "cartpole":
        return None
    mode = "vector_entry_point"
    envs = gymnasium.make_vec("CartPole-v1", num_envs=load.count, vectorization_mode=mode)
    envs.reset(seed=0)
    return stepping(envs, load.count)


def envpool(load: Load) -> Made | None:
    if load.env != "cartpole":
        return None
    import envpool as pool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = pool.make(
            "CartPole-v1", env_type="gymnasium", num_envs=load.count, seed=0, num_threads=2
        )
        envs.reset()
    return stepping(envs, load.count, np.int32)


if __name__ == "__main__":
    main(
        {
            "bare_loop": bare_loop,
            "sync": sync,
            "async": asynchronous,
            "vector": vector,
            "envpool": envpool,
        }
    )
