"""flowrl: its sample collector, with its managers of worker processes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from bench.peers.sleeping import ACTIONS, ENVS, SAMPLES, Collect, Draws, Size, Sleeper, main
from flowrl.core.batch import Array, Column
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.subprocess_env_managers import (
    AsyncSubprocessEnvManager,
    SyncSubprocessEnvManager,
)
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.policies.random import Random

EPISODES = 400  # of an env, more than any run plays
SYNC = {"envs_per_worker": 1, "pre_reset": True}
MODES: Mapping[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "sync": (SyncSubprocessEnvManager, SYNC, {"stepping": "together"}),
    "independent": (SyncSubprocessEnvManager, SYNC, {"stepping": "independent"}),
    "async": (
        AsyncSubprocessEnvManager,
        {**SYNC, "wait_num": 1, "step_wait_timeout_s": 0.0},
        {"stepping": "ready"},
    ),
}
LEAST = {
    "independent": {"small": 8, "middle": 8, "big": 1},  # 8: as together
    "async": {"small": 4, "middle": 4, "big": 1},
}


class Sleeping(gymnasium.Env):  # type: ignore[misc]
    """A sleeper; the seed of an episode says which of which env it is."""

    def __init__(self, size: str, resets: float, seed: int) -> None:
        self._sleeper = Sleeper(size, resets, seed, 0)
        shape = self._sleeper.obs.shape
        self.observation_space = gymnasium.spaces.Box(-10, 10, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)
        self._known = {
            _seed(seed, env, k): (env, k) for env in range(ENVS) for k in range(EPISODES)
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The episode of this seed."""
        return self._sleeper.reset(*self._known[seed or 0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        return self._sleeper.obs, 1.0, self._sleeper.step(), False, {}


def _seed(seed: int, env: int, number: int) -> int:
    """As env managers derive it."""
    digest = hashlib.blake2b(f"{seed}/{env}/{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


class Thinking:
    """Sleeps, and takes the first action."""

    def __init__(self, think: Callable[[], None]) -> None:
        self.think = think

    def load(self, state: Any) -> None:
        """There is nothing to load."""

    def forward(self, obs: Array) -> dict[str, Array]:
        """One action for each observation."""
        self.think()
        return {"action": np.zeros(len(obs), np.int64)}


def make(
    mode: str, sleeper: Callable[[int], Sleeper], think: Callable[[], None], size: Size, seed: int
) -> Collect:
    """`sync` and `independent` are deterministic, `async` is not; all begin episodes ahead of time."""
    name, resets, _ = sleeper.args  # type: ignore[attr-defined]
    kind, of_envs, of_collector = MODES[mode]
    env = Gymnasium(
        id="bench.peers.flowrl_collect:Sleeping",
        kwargs={"size": name, "resets": resets, "seed": seed},
    )
    envs = kind(env=env, count=ENVS, **of_envs)
    envs.seed(seed)
    spec = envs.spec()
    assert isinstance(spec.obs, Column)
    policy = Random(obs=spec.obs, action=spec.action)
    least = {"least": LEAST[mode][name]} if mode in LEAST else {}
    collector = SampleCollector(envs=envs, policy=policy, n_sample=SAMPLES, **of_collector, **least)
    collector.reset_policy(Thinking(think))
    collector.collect()
    # A first episode is the rest of one that is under way: its successor was begun meanwhile.
    time.sleep(max(Draws(name, resets, seed).episode(env, 1).reset_s for env in range(ENVS)))
    return lambda: len(collector.collect())


if __name__ == "__main__":
    main(make)
