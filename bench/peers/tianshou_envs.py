"""tianshou's vector envs under the protocol of `bench envs`."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.env import DummyVectorEnv, ShmemVectorEnv, SubprocVectorEnv

from bench.peers.env_protocol import MakeEnvs, SteppedEnvs, Workload, main


def stepping_all(vector_env_class: Any) -> MakeEnvs:
    """Step all envs at once; tianshou's users must reset finished envs themselves."""

    def make(workload: Workload) -> SteppedEnvs:
        envs = vector_env_class([workload.make_env] * workload.count)
        envs.reset()

        def step(actions: Any) -> int:
            _, _, terminated, truncated, _ = envs.step(actions)
            finished = np.flatnonzero(terminated | truncated)
            if len(finished):
                envs.reset(finished)
            return workload.count

        return SteppedEnvs(step, envs.close)

    return make


def first_ready(workload: Workload) -> SteppedEnvs:
    """Step the envs that are ready first, at least two."""
    makers = [workload.make_env] * workload.count
    envs = ShmemVectorEnv(makers, wait_num=2, timeout=0.01)
    envs.reset()
    ready = np.arange(workload.count)

    def step(actions: Any) -> int:
        nonlocal ready
        _, _, terminated, truncated, infos = envs.step(actions[: len(ready)], ready)
        ready = np.array([info["env_id"] for info in infos])
        finished = ready[terminated | truncated]
        if len(finished):
            envs.reset(finished)
        return len(ready)

    return SteppedEnvs(step, envs.close)


if __name__ == "__main__":
    main(
        {
            "dummy": stepping_all(DummyVectorEnv),
            "subproc": stepping_all(SubprocVectorEnv),
            "shmem": stepping_all(ShmemVectorEnv),
            "shmem_async": first_ready,
        }
    )
