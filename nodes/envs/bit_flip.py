"""BitFlip (Andrychowicz et al. 2017, section 3.1): flip one of n bits in each step, until all are those of the goal."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from flowrl.core.batch import Array


class BitFlip(gymnasium.Env[dict[str, Array], int]):
    """An env with goals, by the convention of gymnasium-robotics. An episode has n steps at most.

    The reward is -1 in each step in which the bits are not those of the goal, which random actions hardly ever reach.
    """

    def __init__(self, bits: int = 10) -> None:
        box = Box(0, 1, (bits,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = Dict(dict.fromkeys(names, box))  # type: ignore[assignment]
        self.action_space = Discrete(bits)  # type: ignore[assignment]
        self.bits = bits

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.now, self.goal = self.np_random.integers(2, size=(2, self.bits)).astype(np.float32)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.now[action] = 1 - self.now[action]
        self.t += 1
        reached = bool(is_reached(self.now, self.goal))
        return self._obs(), reached - 1.0, reached, self.t >= self.bits and not reached, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """The rewards of achieved goals (…, n) for desired ones."""
        return reward(achieved_goal, desired_goal)

    def _obs(self) -> dict[str, Array]:
        now = {name: self.now.copy() for name in ("observation", "achieved_goal")}
        return {**now, "desired_goal": self.goal.copy()}


def is_reached(achieved: Any, desired: Any) -> Any:
    """Whether each goal (…, n) is reached, (…)."""
    return (achieved == desired).all(-1)


def reward(achieved: Any, desired: Any) -> Any:
    """The reward of each row, given the achieved and the desired goals."""
    return is_reached(achieved, desired) - 1.0
