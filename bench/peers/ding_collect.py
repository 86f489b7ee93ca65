"""DI-engine's sample collector, with its managers of worker processes, in the experiment of `bench collector`."""

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

from bench.peers.sleep_experiment import (
    ENVS,
    SAMPLES,
    Collect,
    Infer,
    MakeEnv,
    Size,
    SleepingEnv,
    main,
)

MANAGERS = {"sync": SyncSubprocessEnvManager, "async": AsyncSubprocessEnvManager}


class SleepingDingEnv(BaseEnv):  # type: ignore[misc]
    """The sleeping env with DI-engine's interface."""

    def __init__(self, make: Callable[[], SleepingEnv]) -> None:
        self._env = make()
        shape = self._env.obs.shape
        self.observation_space = gym.spaces.Box(-10, 10, shape, np.float32)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.reward_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._init_flag, self._total = True, 0.0

    def reset(self) -> Any:
        self._total = 0.0
        return self._env.reset()

    def step(self, action: Any) -> Any:
        done = self._env.step()
        self._total += 1
        info = {"eval_episode_return": self._total} if done else {}
        return BaseEnvTimestep(self._env.obs, np.ones(1, np.float32), done, info)

    def seed(self, seed: int, dynamic_seed: bool = False) -> None:
        """Durations do not depend on this seed."""

    def close(self) -> None:
        """There is nothing to close."""

    def __repr__(self) -> str:
        return "SleepingDingEnv"


class SleepingPolicy(FakePolicy):  # type: ignore[misc]
    """DI-engine's policy for measuring collectors, with the durations of the experiment."""

    infer: Infer

    def policy_sleep(self, duration: float) -> None:
        self.infer()


def make_collect(mode: str, make_env: MakeEnv, infer: Infer, size: Size, seed: int) -> Collect:
    """`sync` waits for all envs, `async` for 7 of 8 and then 0.01 s for the last one."""
    logging.disable(logging.INFO)
    manager_class = MANAGERS[mode]
    settings = {"wait_num": ENVS - 1} if mode == "async" else {}
    cfg = EasyDict(deep_merge_dicts(manager_class.default_config(), settings))
    makers = [functools.partial(make_env, i) for i in range(ENVS)]
    envs = manager_class(
        env_fn=[functools.partial(SleepingDingEnv, make) for make in makers], cfg=cfg
    )
    settings = {"type": "fake"}
    policy = SleepingPolicy(EasyDict(deep_merge_dicts(FakePolicy.default_config(), settings)))
    policy.infer = infer
    collector_cfg = EasyDict(deep_merge_dicts(SampleSerialCollector.default_config(), {}))
    collector_cfg.collect_print_freq = 1_000_000
    logs = ".cache/ding_collect"  # the library writes logs below the working directory
    collector = SampleSerialCollector(collector_cfg, envs, policy.collect_mode, exp_name=logs)
    return lambda: len(collector.collect(n_sample=SAMPLES))


if __name__ == "__main__":
    main(make_collect)
