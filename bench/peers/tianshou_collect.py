"""tianshou's collectors, with its worker processes and replay buffer, in the experiment of `bench collector`."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import AsyncCollector, Batch, Collector, CollectStats, VectorReplayBuffer
from tianshou.env import SubprocVectorEnv

from bench.peers.sleep_experiment import ACTIONS, ENVS, SAMPLES, Collect, Infer, MakeEnv, Size, main
from bench.peers.sleep_gymnasium import SleepingGymnasiumEnv


class SleepingPolicy(Policy):  # type: ignore[misc]
    """Sleeps, and takes the first action."""

    def __init__(self, infer: Infer) -> None:
        super().__init__(gymnasium.spaces.Discrete(ACTIONS))
        self.infer = infer

    def forward(self, batch: Any, state: Any = None, **kwargs: Any) -> Any:
        """Return a state, too, without which tianshou's AsyncCollector fails."""
        self.infer()
        rows = len(batch.obs)
        return Batch(act=np.zeros(rows, np.int64), state=np.zeros((rows, 1), np.float32))


def make_collect(mode: str, make_env: MakeEnv, infer: Infer, size: Size, seed: int) -> Collect:
    """`sync` waits for all envs, `async` for 7 of 8."""
    makers = [functools.partial(make_env, i) for i in range(ENVS)]
    env_fns = [functools.partial(SleepingGymnasiumEnv, make) for make in makers]
    buffer = VectorReplayBuffer(20_000, ENVS)
    if mode == "async":
        envs = SubprocVectorEnv(env_fns, wait_num=ENVS - 1)
        collector: Any = AsyncCollector(SleepingPolicy(infer), envs, buffer)
    else:
        envs = SubprocVectorEnv(env_fns)
        collector = Collector[CollectStats](SleepingPolicy(infer), envs, buffer)
    collector.reset()
    return lambda: int(collector.collect(n_step=SAMPLES).n_collected_steps)


if __name__ == "__main__":
    main(make_collect)
