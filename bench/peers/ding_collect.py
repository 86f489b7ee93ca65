"""DI-engine: its sample collector, with its managers of worker processes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import gym
import numpy as np
from ding.envs import AsyncSubprocessEnvManager, BaseEnv, BaseEnvTimestep, SyncSubprocessEnvManager
from ding.utils import deep_merge_dicts
from ding.worker import SampleSerialCollector
from ding.worker.collector.tests.speed_test.fake_policy import FakePolicy
from easydict import EasyDict

from bench.peers.sleeping import ENVS, SAMPLES, Collect, Size, Sleeper, main

MANAGERS = {"sync": SyncSubprocessEnvManager, "async": AsyncSubprocessEnvManager}


class Sleeping(BaseEnv):  # type: ignore[misc]
    """A sleeper with DI-engine's interface."""

    def __init__(self, make: Callable[[], Sleeper]) -> None:
        self._sleeper = make()
        shape = self._sleeper.obs.shape
        self.observation_space = gym.spaces.Box(-10, 10, shape, np.float32)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.reward_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._init_flag, self._total = True, 0.0

    def reset(self) -> Any:
        """The next episode."""
        self._total = 0.0
        return self._sleeper.reset()

    def step(self, action: Any) -> Any:
        """One step."""
        done = self._sleeper.step()
        self._total += 1
        info = {"eval_episode_return": self._total} if done else {}
        return BaseEnvTimestep(self._sleeper.obs, np.ones(1, np.float32), done, info)

    def seed(self, seed: int, dynamic_seed: bool = False) -> None:
        """Everything is drawn beforehand."""

    def close(self) -> None:
        """There is nothing to close."""

    def __repr__(self) -> str:
        return "an env that sleeps"


class Thinking(FakePolicy):  # type: ignore[misc]
    """DI-engine's own policy for measuring collectors; only how long it sleeps is ours."""

    think: Callable[[], None]

    def policy_sleep(self, duration: float) -> None:
        """The drawn time, instead of its own."""
        self.think()


def make(
    mode: str, sleeper: Callable[[int], Sleeper], think: Callable[[], None], size: Size, seed: int
) -> Collect:
    """`sync` and `async` (waits for 7 of 8, and 0.01 s for stragglers) as its settings say."""
    logging.disable(logging.INFO)
    manager = MANAGERS[mode]
    mine = {"wait_num": ENVS - 1} if mode == "async" else {}
    cfg = EasyDict(deep_merge_dicts(manager.default_config(), mine))
    fns = [functools.partial(Sleeping, functools.partial(sleeper, i)) for i in range(ENVS)]
    envs = manager(env_fn=fns, cfg=cfg)
    policy = Thinking(EasyDict(deep_merge_dicts(FakePolicy.default_config(), {"type": "fake"})))
    policy.think = think
    own = EasyDict(deep_merge_dicts(SampleSerialCollector.default_config(), {}))
    own.collect_print_freq = 1_000_000
    logs = ".cache/ding_collect"  # it writes logs below the folder where it runs
    collector = SampleSerialCollector(own, envs, policy.collect_mode, exp_name=logs)
    return lambda: len(collector.collect(n_sample=SAMPLES))


if __name__ == "__main__":
    main(make)
