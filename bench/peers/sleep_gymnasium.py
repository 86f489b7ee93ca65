"""The sleeping env with gymnasium's interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from bench.peers.sleep_experiment import ACTIONS, SleepingEnv


class SleepingGymnasiumEnv(gymnasium.Env):  # type: ignore[misc]
    """A sleeping env, whose seeds have no effect."""

    def __init__(self, make: Callable[[], SleepingEnv]) -> None:
        self._env = make()
        shape = self._env.obs.shape
        self.observation_space = gymnasium.spaces.Box(-10, 10, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._env.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._env.obs, 1.0, self._env.step(), False, {}
