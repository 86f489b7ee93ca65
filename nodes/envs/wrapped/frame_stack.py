"""The newest frames as one observation, at work."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Wrapper
from gymnasium.spaces import Box

from flowrl.core.batch import Array
from flowrl.nodes.envs.spec import FRAMES
from flowrl.nodes.envs.wrapped.spaces import find_box, replace_leaf


class FrameStackEnv(Wrapper):
    """Every observation is a new array: who holds one may keep it."""

    def __init__(self, env: Any, n: int, leaf: str | None) -> None:
        super().__init__(env)
        box = find_box(env, leaf, "frame_stack")
        low, high = (np.repeat(bound[None], n, 0) for bound in (box.low, box.high))
        stacked = Box(low, high, dtype=box.dtype.type)
        setattr(stacked, FRAMES, n)
        self.observation_space = replace_leaf(env.observation_space, leaf, stacked)
        self._n, self._leaf = n, leaf
        self._frames: Array = np.empty(stacked.shape, stacked.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """The first frame, n times."""
        obs, info = self.env.reset(seed=seed, options=options)
        self._frames = np.repeat(self._frame(obs)[None], self._n, 0)
        return self._seen(obs), info

    def step(self, action: Any) -> Any:
        """The newest frame pushes out the oldest."""
        obs, *rest = self.env.step(action)
        self._frames = np.concatenate([self._frames[1:], self._frame(obs)[None]])
        return self._seen(obs), *rest

    def _frame(self, obs: Any) -> Array:
        return np.asarray(obs if self._leaf is None else obs[self._leaf])

    def _seen(self, obs: Any) -> Any:
        return self._frames if self._leaf is None else {**obs, self._leaf: self._frames}
