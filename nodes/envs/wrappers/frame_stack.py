"""A wrapper that stacks the newest frames into one observation."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.nodes.envs.spec import FRAMES
from flowrl.nodes.envs.wrappers.lazy_base import EnvWrapper
from flowrl.nodes.envs.wrappers.spaces import (
    LEAF_HELP,
    find_box,
    read_leaf,
    replace_leaf,
    write_leaf,
)
from flowrl.nodes.envs.wrappers.wrapper import Wrapper


class FrameStack(Wrapper):
    """Observations (…) become (n, …), the oldest first; an episode begins with n copies of its first frame.

    The column records the number of frames (`Column.frames`), so a buffer can store each frame once; see docs/envs.md.
    """

    class Config(Wrapper.Config):
        n: int = param(4, "number of frames", ge=1)
        leaf: str | None = param(None, LEAF_HELP)

    def wrap(self, env: Any) -> Any:
        return FrameStackEnv(env, self.config.n, self.config.leaf)


class FrameStackEnv(EnvWrapper):
    """Every observation is a new array, so callers may keep it."""

    def __init__(self, env: Any, n: int, leaf: str | None) -> None:
        from gymnasium.spaces import Box

        super().__init__(env)
        box = find_box(env, leaf, "frame_stack")
        low, high = (np.repeat(bound[None], n, 0) for bound in (box.low, box.high))
        stacked = Box(low, high, dtype=box.dtype.type)
        setattr(stacked, FRAMES, n)
        self.observation_space = replace_leaf(env.observation_space, leaf, stacked)
        self._n, self._leaf = n, leaf
        self._frames: Array = np.empty(stacked.shape, stacked.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        self._frames = np.repeat(read_leaf(obs, self._leaf)[None], self._n, 0)
        return write_leaf(obs, self._leaf, self._frames), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        self._frames = np.concatenate([self._frames[1:], read_leaf(obs, self._leaf)[None]])
        return write_leaf(obs, self._leaf, self._frames), *rest
