"""flowrl's env managers, as `env_protocol` measures them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.peers.env_protocol import Load, Step, main
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.subprocess_env_managers import (
    AsyncSubprocessEnvManager,
    SyncSubprocessEnvManager,
)
from flowrl.nodes.env_managers.thread_env_manager import ThreadEnvManager
from flowrl.nodes.env_managers.vector_env_manager import EnvPoolEnvManager, VectorEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium

IDS = {"cartpole": "CartPole-v1", "pixels": "bench.peers.env_protocol:Pixels"}
Made = tuple[Step, Callable[[], Any]]


def of(kind: Any, **params: Any) -> Callable[[Load], Made]:
    """All envs at once."""

    def make(load: Load) -> Made:
        envs = kind(env=Gymnasium(id=IDS[load.env]), count=load.count, **params)
        envs.reset()

        def step(actions: Any) -> int:
            envs.advance(actions)
            return load.count

        return step, envs.close

    return make


def one_worker(load: Load) -> Made:
    """All envs in one process, beside the manager's: on two cores, the way for the cheapest envs."""
    return of(SyncSubprocessEnvManager, envs_per_worker=load.count)(load)


def asynchronous(load: Load) -> Made:
    """Whatever is ready."""
    per = -(-load.count // 2)
    env = Gymnasium(id=IDS[load.env])
    envs = AsyncSubprocessEnvManager(env=env, count=load.count, envs_per_worker=per)
    envs.reset()
    ready = np.arange(load.count)

    def step(actions: Any) -> int:
        nonlocal ready
        envs.send(ready, actions[: len(ready)])
        ready, _ = envs.recv()
        return len(ready)

    return step, envs.close


def only_cartpole(make: Callable[[Load], Made]) -> Callable[[Load], Made | None]:
    """The pool has no other."""
    return lambda load: make(load) if load.env == "cartpole" else None


if __name__ == "__main__":
    main(
        {
            "base": of(SerialEnvManager),
            "sync_subprocess": of(SyncSubprocessEnvManager),
            "one_worker": one_worker,
            "async_subprocess": asynchronous,
            "thread": of(ThreadEnvManager),
            "vector": only_cartpole(of(VectorEnvManager)),
            "envpool": only_cartpole(of(EnvPoolEnvManager, num_threads=2)),
        }
    )
