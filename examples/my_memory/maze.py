"""An env that requires memory: a sign at the entrance shows which way to turn at the corridor's end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Maze(gymnasium.Env):
    """T-maze (Bakker 2002): the sign is visible only in the first step; the turn at the end is rewarded."""

    def __init__(self, length: int = 10) -> None:
        # the sign, and whether this is the end
        self.observation_space = Box(-1, 1, (2,), np.float32)
        self.action_space = Discrete(2)  # left, right; it matters only at the end
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.rewarded_action = int(self.np_random.integers(2))
        self.t = 0
        sign = 2 * self.rewarded_action - 1
        return np.array([sign, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        done = self.t > self.length
        reward = 0.0
        if done:
            reward = 1.0 if action == self.rewarded_action else -1.0
        obs = np.array([0, self.t == self.length], np.float32)
        return obs, reward, done, False, {}
