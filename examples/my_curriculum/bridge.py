"""An env that random actions never solve. The options of `reset` make it easier."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Bridge(gymnasium.Env):
    """Each plank has one right action, and a wrong one ends the episode. Only the far end is rewarded.

    `reset(options={"length": n})` builds a bridge of n planks.
    """

    def __init__(self, planks: int = 16) -> None:
        self.observation_space = Box(0, 1, (planks,), np.float32)  # the plank, one-hot
        self.action_space = Discrete(2)
        self.planks = planks
        self.right_actions = np.random.default_rng(0).integers(2, size=planks)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        length = round((options or {}).get("length", self.planks))
        self.length = min(max(length, 1), self.planks)
        self.position = 0
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        falls = action != self.right_actions[self.position]
        self.position += not falls
        arrives = self.position == self.length
        return self._obs(), float(arrives), bool(falls or arrives), False, self._info()

    def _obs(self) -> Any:
        obs = np.zeros(self.planks, np.float32)
        if self.position < self.planks:
            obs[self.position] = 1
        return obs

    def _info(self) -> dict[str, Any]:
        return {"walked": float(self.position)}
