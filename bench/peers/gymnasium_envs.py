"""gymnasium's vector envs, and EnvPool without a manager, under the protocol of `bench envs`."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np

from bench.peers.env_protocol import SteppedEnvs, Workload, main


def stepping_all(envs: Any, count: int, dtype: Any = np.int64) -> SteppedEnvs:
    """Step all envs at once."""

    def step(actions: Any) -> int:
        envs.step(actions.astype(dtype, copy=False))
        return count

    return SteppedEnvs(step, envs.close)


def bare_loop(workload: Workload) -> SteppedEnvs:
    """Step in a hand-written loop without columns, seeds and checks."""
    envs = [workload.make_env() for _ in range(workload.count)]
    for env in envs:
        env.reset()

    def step(actions: Any) -> int:
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return workload.count

    return SteppedEnvs(step, lambda: None)


def sync(workload: Workload) -> SteppedEnvs:
    envs = gymnasium.vector.SyncVectorEnv([workload.make_env] * workload.count)
    envs.reset(seed=0)
    return stepping_all(envs, workload.count)


def asynchronous(workload: Workload) -> SteppedEnvs:
    makers = [workload.make_env] * workload.count
    envs = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=True)
    envs.reset(seed=0)
    return stepping_all(envs, workload.count)


def vector(workload: Workload) -> SteppedEnvs | None:
    if workload.env != "cartpole":
        return None
    mode = "vector_entry_point"
    envs = gymnasium.make_vec("CartPole-v1", num_envs=workload.count, vectorization_mode=mode)
    envs.reset(seed=0)
    return stepping_all(envs, workload.count)


def envpool(workload: Workload) -> SteppedEnvs | None:
    if workload.env != "cartpole":
        return None
    import envpool as pool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envs = pool.make(
            "CartPole-v1", env_type="gymnasium", num_envs=workload.count, seed=0, num_threads=2
        )
        envs.reset()
    return stepping_all(envs, workload.count, np.int32)


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
