"""More leaves of the observation, at work."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Wrapper
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from flowrl.core.batch import Array
from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.wrapped.spaces import add_leaf_values, add_leaves
from flowrl.nodes.models.features import ACTION_MASK

LAST_ACTION, LAST_REWARD = "last_action", "last_reward"


class PreviousStepEnv(Wrapper):
    """Remembers one step."""

    def __init__(self, env: Any, action: bool, reward: bool) -> None:
        super().__init__(env)
        more: dict[str, Any] = {LAST_ACTION: env.action_space} if action else {}
        more |= {LAST_REWARD: Box(-np.inf, np.inf, (1,), np.float32)} if reward else {}
        self._inner, self._names = env.observation_space, tuple(more)
        self.observation_space = add_leaves(self._inner, more, "previous")
        self._none = _zeros(env.action_space) if action else None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Nothing was done yet."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._seen(obs, self._none, 0.0), info

    def step(self, action: Any) -> Any:
        """Observes this action and its reward."""
        obs, reward, *rest = self.env.step(action)
        return self._seen(obs, action, reward), reward, *rest

    def _seen(self, obs: Any, action: Any, reward: Any) -> dict[str, Any]:
        last = {LAST_ACTION: action, LAST_REWARD: np.array([reward], np.float32)}
        return add_leaf_values(self._inner, obs, {name: last[name] for name in self._names})


def _zeros(space: Any) -> Any:
    if isinstance(space, Discrete):
        return np.int64(0)
    if isinstance(space, Box | MultiDiscrete | MultiBinary):
        zeros = np.zeros(space.shape, space.dtype)
        return np.clip(zeros, space.low, space.high) if isinstance(space, Box) else zeros
    raise UnsoundError(f"previous: actions are {space}", "set action: false", "env")


class ActionMaskEnv(Wrapper):
    """Moves the mask from the info into the observation."""

    def __init__(self, env: Any, key: str) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, Discrete):
            what = f"action_mask: actions are {env.action_space}"
            raise UnsoundError(what, "it needs one of n; leave it out", "env")
        self._key, self._inner, self._n = key, env.observation_space, int(env.action_space.n)
        more = {ACTION_MASK: MultiBinary(self._n)}
        self.observation_space = add_leaves(self._inner, more, "action_mask")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """With what may be done first."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._seen(obs, info), info

    def step(self, action: Any) -> Any:
        """With what may be done next."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._seen(obs, info), reward, terminated, truncated, info

    def _seen(self, obs: Any, info: Any) -> dict[str, Any]:
        return add_leaf_values(self._inner, obs, {ACTION_MASK: self._mask(info)})

    def _mask(self, info: Any) -> Array:
        if self._key not in info:
            raise ValueError(f"action_mask: the env's info has no '{self._key}'; give its `key`")
        mask: Array = (np.asarray(info[self._key]) != 0).astype(np.int8)
        if mask.shape != (self._n,):
            raise ValueError(f"action_mask: the mask {mask} is not of {self._n} actions")
        return mask
