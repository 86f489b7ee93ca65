"""Your own env needs gymnasium's interface, and nothing else."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Corridor(gymnasium.Env):
    """Walk to the right end, whose reward is 1; each step has a cost. Episodes start at random positions."""

    def __init__(self, length: int = 8, step_cost: float = 0.01) -> None:
        self.observation_space = Box(0.0, 1.0, (1,), np.float32)
        self.action_space = Discrete(2)  # left, right
        self.length, self.step_cost = length, step_cost

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Draw only from `np_random`, which `seed` seeds, so that runs are repeatable."""
        super().reset(seed=seed)
        self.position = int(self.np_random.integers(self.length))
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Terminate at the end. The graph's `max_episode_steps` truncates long episodes."""
        self.position = max(0, self.position + (1 if action else -1))
        at_end = self.position == self.length
        reward = float(at_end) - self.step_cost
        return self._obs(), reward, at_end, False, {}

    def _obs(self) -> Any:
        return np.array([self.position / self.length], np.float32)
