"""stable-baselines3's vector envs under the protocol of `bench envs`."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from bench.peers.env_protocol import MakeEnvs, SteppedEnvs, Workload, main


def stepping_all(vec_env_class: Any, **options: Any) -> MakeEnvs:
    """Step all envs at once."""

    def make(workload: Workload) -> SteppedEnvs:
        envs = vec_env_class([workload.make_env] * workload.count, **options)
        envs.reset()

        def step(actions: Any) -> int:
            envs.step(actions)
            return workload.count

        return SteppedEnvs(step, envs.close)

    return make


if __name__ == "__main__":
    main(
        {
            "dummy": stepping_all(DummyVecEnv),
            "subproc": stepping_all(SubprocVecEnv, start_method="fork"),
        }
    )
