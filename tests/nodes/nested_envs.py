"""Envs whose observations are nested."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple


class Nested(gymnasium.Env):
    """Sees an image that shows the step, a pair, and a number; the right action is in the pair."""

    def __init__(self, length: int = 5, broken: str = "") -> None:
        self.observation_space = Dict(
            {
                "camera": Box(0, 255, (6, 6, 1), np.uint8),
                "pair": Tuple([Discrete(3), Box(-1, 1, (2,), np.float64)]),
            }
        )
        self.action_space = Discrete(3)
        self.length, self.broken = length, broken

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = int(action) == self.wanted
        self.t += 1
        return self._obs(), float(right), self.t == self.length, False, {}

    def _obs(self) -> dict[str, Any]:
        self.wanted = int(self.np_random.integers(3))
        camera = np.full((6, 6, 1), 10 * self.t, np.uint8)
        pair = (self.wanted, np.array([self.t / 10, -0.5]))
        if self.broken == "nan" and self.t == 2:
            pair = (self.wanted, np.array([np.nan, 0]))
        if self.broken == "lacks" and self.t == 2:
            return {"camera": camera}
        if self.broken == "no tuple" and self.t == 2:
            return {"camera": camera, "pair": 3}
        return {"camera": camera, "pair": pair}


class Robot(gymnasium.Env):
    """Sees two images that show the step, one of them in a Dict in the Dict."""

    def __init__(self) -> None:
        camera, eye = Box(0, 255, (2, 3, 3), np.uint8), Box(0, 255, (2, 3, 3), np.uint8)
        inner = Dict({"eye": eye, "load": Discrete(3)})
        self.observation_space = Dict({"camera": camera, "robot": inner})
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._obs(), 0.0, self.t == 5, False, {}

    def _obs(self) -> dict[str, Any]:
        eye = np.full((2, 3, 3), self.t, np.uint8)
        return {"camera": np.zeros((2, 3, 3), np.uint8), "robot": {"eye": eye, "load": 1}}


class Bright(gymnasium.Env):
    """One half of the image is brighter; the right action says which."""

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (8, 8), np.uint8)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self.side)
        self.t += 1
        return self._obs(), reward, self.t == 4, False, {}

    def _obs(self) -> Any:
        self.side = int(self.np_random.integers(2))
        image = self.np_random.integers(100, size=(8, 8)).astype(np.uint8)
        image[:, 4 * self.side : 4 * self.side + 4] += 120
        return image
