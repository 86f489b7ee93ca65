"""The sleeping env for libraries that take gymnasium's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from bench.peers.sleeping import ACTIONS, Sleeper


class Sleeping(gymnasium.Env):  # type: ignore[misc]
    """A sleeper with gymnasium's interface."""

    def __init__(self, make: Callable[[], Sleeper]) -> None:
        self._sleeper = make()
        shape = self._sleeper.obs.shape
        self.observation_space = gymnasium.spaces.Box(-10, 10, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(ACTIONS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The next episode, whatever the seed."""
        return self._sleeper.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step."""
        return self._sleeper.obs, 1.0, self._sleeper.step(), False, {}
