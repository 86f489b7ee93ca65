"""An env with a goal: flip one bit in each step, until all bits are those of the goal."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Bits(gymnasium.Env):
    """The reward is -1 in each step until the goal is reached, which random actions hardly ever do."""

    def __init__(self, count: int = 10) -> None:
        bits = Box(0, 1, (count,), np.float32)
        self.observation_space = Dict({"achieved_goal": bits, "desired_goal": bits})
        self.action_space = Discrete(count)
        self.count = count

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(2, size=(2, self.count)).astype(np.float32)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.bits[action] = 1 - self.bits[action]
        self.t += 1
        done = bool(is_reached(self.bits[None], self.goal[None])[0])
        return self._obs(), done - 1.0, done, self.t == self.count and not done, {}

    def _obs(self) -> dict[str, Any]:
        return {"achieved_goal": self.bits.copy(), "desired_goal": self.goal.copy()}


def is_reached(achieved: Any, desired: Any) -> Any:
    """Whether each goal (n, …) is reached, (n,)."""
    return (achieved == desired).all(1)


def reward(achieved: Any, desired: Any) -> Any:
    """The reward of each row, given the achieved and the desired goals."""
    return is_reached(achieved, desired) - 1.0
