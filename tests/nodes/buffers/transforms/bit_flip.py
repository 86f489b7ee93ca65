"""Bit flipping (Andrychowicz et al. 2017, section 3.1): reach a pattern of bits by one flip in each step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class BitFlip(gymnasium.Env):
    """The reward is -1 until the bits equal the goal, then 0, and the episode ends."""

    def __init__(self, bits: int = 5, steps: int = 5) -> None:
        self.bits, self.steps = bits, steps
        part = Box(0, 1, (bits,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = Dict(dict.fromkeys(names, part))
        self.action_space = Discrete(bits)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.now, self.goal = self.np_random.integers(2, size=(2, self.bits)).astype(np.float32)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.now = self.now.copy()
        self.now[int(action)] = 1 - self.now[int(action)]
        self.t += 1
        reached = bool((self.now == self.goal).all())
        cut = self.t == self.steps and not reached
        return self._observe(), 0.0 if reached else -1.0, reached, cut, {}

    def _observe(self) -> dict[str, Any]:
        return {"observation": self.now, "achieved_goal": self.now, "desired_goal": self.goal}


def reward(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Return 0 for each goal that is reached, else -1."""
    return (achieved == desired).all(1) - 1.0


def reached(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Return which goals are reached, so that the episode ends."""
    return (achieved == desired).all(1)


def scalar(achieved: np.ndarray, desired: np.ndarray) -> float:
    """Return one value instead of one for each row, which is invalid."""
    return 0.0


def reward_by_info(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
    """Return what the info of the row's step says."""
    return info["number"]
