"""An env that asks for memory: a sign at the entrance says which way to turn at the corridor's end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Maze(gymnasium.Env):
    """T-maze (Bakker 2002): the sign is seen in the first step alone; the turn at the end is rewarded."""

    def __init__(self, length: int = 10) -> None:
        self.observation_space = Box(-1, 1, (2,), np.float32)  # the sign, whether this is the end
        self.action_space = Discrete(2)  # left, right: it counts at the end only
        self.length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.right = int(self.np_random.integers(2))
        self.t = 0
        return np.array([2 * self.right - 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        done = self.t > self.length
        turned = 1.0 if action == self.right else -1.0
        seen = np.array([0, self.t == self.length], np.float32)
        return seen, turned if done else 0.0, done, False, {}
