"""tianshou: its collectors, in worker processes, with its replay buffer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import AsyncCollector, Batch, Collector, CollectStats, VectorReplayBuffer
from tianshou.env import SubprocVectorEnv

from bench.peers.sleeping import ACTIONS, ENVS, SAMPLES, Collect, Size, Sleeper, main
from bench.peers.sleeping_gymnasium import Sleeping


class Thinking(Policy):  # type: ignore[misc]
    """Sleeps, and takes the first action."""

    def __init__(self, think: Callable[[], None]) -> None:
        super().__init__(gymnasium.spaces.Discrete(ACTIONS))
        self.think = think

    def forward(self, batch: Any, state: Any = None, **kwargs: Any) -> Any:
        """As tianshou's policies; its AsyncCollector fails where there is no state at all."""
        self.think()
        rows = len(batch.obs)
        return Batch(act=np.zeros(rows, np.int64), state=np.zeros((rows, 1), np.float32))


def make(
    mode: str, sleeper: Callable[[int], Sleeper], think: Callable[[], None], size: Size, seed: int
) -> Collect:
    """`sync` waits for all envs, `async` for 7 of 8."""
    fns = [functools.partial(Sleeping, functools.partial(sleeper, i)) for i in range(ENVS)]
    buffer = VectorReplayBuffer(20_000, ENVS)
    if mode == "async":
        envs = SubprocVectorEnv(fns, wait_num=ENVS - 1)
        collector: Any = AsyncCollector(Thinking(think), envs, buffer)
    else:
        collector = Collector[CollectStats](Thinking(think), SubprocVectorEnv(fns), buffer)
    collector.reset()
    return lambda: int(collector.collect(n_step=SAMPLES).n_collected_steps)


if __name__ == "__main__":
    main(make)
