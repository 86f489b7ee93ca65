"""An env of one's own: gymnasium's interface, and nothing else."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Corridor(gymnasium.Env):
    """Walk to the right end: a step costs, the end pays 1, each episode begins elsewhere."""

    def __init__(self, length: int = 8, step_cost: float = 0.01) -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(2)  # left, right
        self.length, self.step_cost = length, step_cost

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """All randomness from `np_random`, which `seed` seeds: then runs can be repeated."""
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(self.length))
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The env says when an episode is over; when it is cut off, `max_episode_steps` says."""
        self.at = max(0, self.at + (1 if action else -1))
        there = self.at == self.length
        return self._obs(), (1.0 if there else 0.0) - self.step_cost, there, False, {}

    def _obs(self) -> Any:
        return np.array([self.at / self.length], np.float32)
