"""flowrl's env managers under the protocol of `bench envs`."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.peers.env_protocol import MakeEnvs, SteppedEnvs, Workload, main
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.subprocess_env_managers import (
    AsyncSubprocessEnvManager,
    SyncSubprocessEnvManager,
)
from flowrl.nodes.env_managers.thread_env_manager import ThreadEnvManager
from flowrl.nodes.env_managers.vector_env_manager import EnvPoolEnvManager, VectorEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium

ENV_IDS = {"cartpole": "CartPole-v1", "pixels": "bench.peers.env_protocol:Pixels"}


def stepping_all(manager_class: Any, only_cartpole: bool = False, **params: Any) -> MakeEnvs:
    """Step all envs at once."""

    def make(workload: Workload) -> SteppedEnvs | None:
        if only_cartpole and workload.env != "cartpole":
            return None
        env = Gymnasium(id=ENV_IDS[workload.env])
        envs = manager_class(env=env, count=workload.count, **params)
        envs.reset()

        def step(actions: Any) -> int:
            envs.advance(actions)
            return workload.count

        return SteppedEnvs(step, envs.close)

    return make


def one_worker(workload: Workload) -> SteppedEnvs | None:
    """Step all envs in one process beside the manager's, which is best for the cheapest envs on two cores."""
    return stepping_all(SyncSubprocessEnvManager, envs_per_worker=workload.count)(workload)


def first_ready(workload: Workload) -> SteppedEnvs:
    """Step the envs that are ready first."""
    env, half = Gymnasium(id=ENV_IDS[workload.env]), -(-workload.count // 2)
    envs = AsyncSubprocessEnvManager(env=env, count=workload.count, envs_per_worker=half)
    envs.reset()
    ready = np.arange(workload.count)

    def step(actions: Any) -> int:
        nonlocal ready
        envs.send(ready, actions[: len(ready)])
        ready, _ = envs.recv()
        return len(ready)

    return SteppedEnvs(step, envs.close)


if __name__ == "__main__":
    main(
        {
            "serial": stepping_all(SerialEnvManager),
            "sync_subprocess": stepping_all(SyncSubprocessEnvManager),
            "one_worker": one_worker,
            "async_subprocess": first_ready,
            "thread": stepping_all(ThreadEnvManager),
            "vector": stepping_all(VectorEnvManager, only_cartpole=True),
            "envpool": stepping_all(EnvPoolEnvManager, only_cartpole=True, num_threads=2),
        }
    )
