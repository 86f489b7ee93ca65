"""flowrl's sample collector, with its managers of worker processes, in the experiment of `bench collector`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

from bench.peers.sleep_experiment import (
    ACTIONS,
    ENVS,
    SAMPLES,
    Collect,
    Durations,
    Infer,
    MakeEnv,
    Size,
    SleepingEnv,
    main,
)
from flowrl.core.batch import Array, Column
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.subprocess_env_managers import (
    AsyncSubprocessEnvManager,
    SyncSubprocessEnvManager,
)
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.policies.random import Random

MAX_EPISODES = 400  # of an env, more than any run plays
SYNC = {"envs_per_worker": 1, "pre_reset": True}
# The class of the manager, its parameters, and those of the collector.
MODES: Mapping[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "base": (SerialEnvManager, {}, {"stepping": "together"}),
    "sync": (SyncSubprocessEnvManager, SYNC, {"stepping": "together"}),
    "independent": (SyncSubprocessEnvManager, SYNC, {"stepping": "independent"}),
    "async": (
        AsyncSubprocessEnvManager,
        {**SYNC, "wait_num": 1, "step_wait_timeout_s": 0.0},
        {"stepping": "ready"},
    ),
}
LEAST = {
    "independent": {"small": 8, "middle": 8, "big": 1},  # with 8, all envs step together
    "async": {"small": 4, "middle": 4, "big": 1},
}


class SeededSleepingEnv(gymnasium.Env):  # type: ignore[misc]
    """A sleeping env with gymnasium's interface, whose seed selects the env and the episode."""

    def __init__(self, size: str, reset_factor: float, seed: int) -> None:
        self._env = SleepingEnv(size, reset_factor, seed, 0)
        shape = self._env.obs.shape
        self.observation_space = gymnasium.spaces.Box(-10, 10, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)
        self._env_and_episode = {
            _episode_seed(seed, env, k): (env, k)
            for env in range(ENVS)
            for k in range(MAX_EPISODES)
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._env.reset(*self._env_and_episode[seed or 0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._env.obs, 1.0, self._env.step(), False, {}


def _episode_seed(seed: int, env: int, episode: int) -> int:
    """Derive the seed of an episode as env managers do."""
    digest = hashlib.blake2b(f"{seed}/{env}/{episode}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


class SleepingMode:
    """An act mode that sleeps, and takes the first action."""

    def __init__(self, infer: Infer) -> None:
        self.infer = infer

    def load(self, state: Any) -> None:
        """There are no weights to load."""

    def forward(self, obs: Array) -> dict[str, Array]:
        self.infer()
        return {"action": np.zeros(len(obs), np.int64)}


def make_collect(mode: str, make_env: MakeEnv, infer: Infer, size: Size, seed: int) -> Collect:
    """`base`, `sync` and `independent` are deterministic, `async` is not; all but `base` reset envs in advance."""
    name, reset_factor, _ = make_env.args  # type: ignore[attr-defined]
    manager_class, manager_params, collector_params = MODES[mode]
    env = Gymnasium(
        id="bench.peers.flowrl_collect:SeededSleepingEnv",
        kwargs={"size": name, "reset_factor": reset_factor, "seed": seed},
    )
    envs = manager_class(env=env, count=ENVS, **manager_params)
    envs.seed(seed)
    spec = envs.spec()
    assert isinstance(spec.obs, Column)
    policy = Random(obs=spec.obs, action=spec.action)
    if mode in LEAST:
        collector_params = {**collector_params, "least": LEAST[mode][name]}
    collector = SampleCollector(envs=envs, policy=policy, n_sample=SAMPLES, **collector_params)
    collector.reset_policy(SleepingMode(infer))
    collector.collect()
    # In the middle of a run, the spare envs have already been reset; wait until they have been here, too.
    durations = Durations(name, reset_factor, seed)
    time.sleep(max(durations.episode(env, 1).reset_s for env in range(ENVS)))
    return lambda: len(collector.collect())


if __name__ == "__main__":
    main(make_collect)
