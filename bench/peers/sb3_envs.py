"""stable-baselines3's vector envs, as `env_protocol` measures them; run by its Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from bench.peers.env_protocol import Load, Step, main


def of(kind: Any, **options: Any) -> Callable[[Load], tuple[Step, Callable[[], Any]]]:
    """All envs at once."""

    def make(load: Load) -> tuple[Step, Callable[[], Any]]:
        envs = kind([load.make] * load.count, **options)
        envs.reset()

        def step(actions: Any) -> int:
            envs.step(actions)
            return load.count

        return step, envs.close

    return make


if __name__ == "__main__":
    main({"dummy": of(DummyVecEnv), "subproc": of(SubprocVecEnv, start_method="fork")})
