"""tianshou's vector envs, as `env_protocol` measures them; run by its Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tianshou.env import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv

from bench.peers.env_protocol import Load, Step, main

Made = tuple[Step, Callable[[], Any]]


def of(kind: Any) -> Callable[[Load], Made]:
    """All envs at once; it leaves it to its user to begin the next episodes."""

    def make(load: Load) -> Made:
        envs = kind([load.make] * load.count)
        envs.reset()

        def step(actions: Any) -> int:
            _, _, terminated, truncated, _ = envs.step(actions)
            over = np.flatnonzero(terminated | truncated)
            if len(over):
                envs.reset(over)
            return load.count

        return step, envs.close

    return make


def asynchronous(load: Load) -> Made:
    """Whatever is ready, at least two."""
    envs = ShmemVectorEnv([load.make] * load.count, wait_num=2, timeout=0.01)
    envs.reset()
    ready = np.arange(load.count)

    def step(actions: Any) -> int:
        nonlocal ready
        _, _, terminated, truncated, info = envs.step(actions[: len(ready)], ready)
        ready = np.array([one["env_id"] for one in info])
        over = ready[terminated | truncated]
        if len(over):
            envs.reset(over)
        return len(ready)

    return step, envs.close


if __name__ == "__main__":
    main(
        {
            "dummy": of(DummyVectorEnv),
            "subproc": of(SubprocVectorEnv),
            "shmem": of(ShmemVectorEnv),
            "shmem_async": asynchronous,
        }
    )
