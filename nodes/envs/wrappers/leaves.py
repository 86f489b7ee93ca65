"""Wrappers that add leaves to the observation: the last action and reward, and the action mask."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.wrappers.lazy_base import EnvWrapper
from flowrl.nodes.envs.wrappers.spaces import add_leaf_values, add_leaves, is_dict_space
from flowrl.nodes.envs.wrappers.wrapper import Wrapper
from flowrl.nodes.models.features import ACTION_MASK

LAST_ACTION, LAST_REWARD = "last_action", "last_reward"


class Previous(Wrapper):
    """Adds the last action and reward to the observation, as leaves `last_action` and `last_reward`.

    An episode begins with zeros. An observation that was not a Dict becomes its leaf `observation`.
    """

    class Config(Wrapper.Config):
        action: bool = param(True, "observe the last action")
        reward: bool = param(True, "observe the last reward")

    def wrap(self, env: Any) -> Any:
        return PreviousStepEnv(env, self.config.action, self.config.reward)


class PreviousStepEnv(EnvWrapper):
    def __init__(self, env: Any, action: bool, reward: bool) -> None:
        from gymnasium.spaces import Box

        super().__init__(env)
        more: dict[str, Any] = {LAST_ACTION: env.action_space} if action else {}
        more |= {LAST_REWARD: Box(-np.inf, np.inf, (1,), np.float32)} if reward else {}
        self._is_dict, self._names = is_dict_space(env.observation_space), tuple(more)
        self.observation_space = add_leaves(env.observation_space, more, "previous")
        self._first_action = _zero_action(env.action_space) if action else None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_last(obs, self._first_action, 0.0), info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return self._with_last(obs, action, reward), reward, *rest

    def _with_last(self, obs: Any, action: Any, reward: Any) -> dict[str, Any]:
        last = {LAST_ACTION: action, LAST_REWARD: np.array([reward], np.float32)}
        return add_leaf_values(obs, {name: last[name] for name in self._names}, self._is_dict)


def _zero_action(space: Any) -> Any:
    from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

    if isinstance(space, Discrete):
        return np.int64(0)
    if isinstance(space, Box | MultiDiscrete | MultiBinary):
        zeros = np.zeros(space.shape, space.dtype)
        return np.clip(zeros, space.low, space.high) if isinstance(space, Box) else zeros
    raise UnsoundError(f"previous: actions are {space}", "set action: false", "env")


class ActionMask(Wrapper):
    """Moves the mask of allowed actions from `info` into the observation, as the leaf `action_mask`.

    Policies choose allowed actions only. An observation that was not a Dict becomes its leaf `observation`.
    """

    class Config(Wrapper.Config):
        key: str = param(
            "action_mask", "the key of `info` that has a number for each action; 0: not allowed"
        )

    def wrap(self, env: Any) -> Any:
        return ActionMaskEnv(env, self.config.key)


class ActionMaskEnv(EnvWrapper):
    def __init__(self, env: Any, key: str) -> None:
        from gymnasium.spaces import Discrete, MultiBinary

        super().__init__(env)
        if not isinstance(env.action_space, Discrete):
            what = f"action_mask: actions are {env.action_space}"
            raise UnsoundError(what, "it needs a Discrete space; leave it out", "env")
        self._key, self._n = key, int(env.action_space.n)
        self._is_dict = is_dict_space(env.observation_space)
        more = {ACTION_MASK: MultiBinary(self._n)}
        self.observation_space = add_leaves(env.observation_space, more, "action_mask")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(obs, info), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(obs, info), reward, terminated, truncated, info

    def _with_mask(self, obs: Any, info: Any) -> dict[str, Any]:
        return add_leaf_values(obs, {ACTION_MASK: self._mask(info)}, self._is_dict)

    def _mask(self, info: Any) -> Array:
        if self._key not in info:
            raise ValueError(
                f"action_mask: the env's info has no '{self._key}'; set `key` to that of the mask"
            )
        mask: Array = (np.asarray(info[self._key]) != 0).astype(np.int8)
        if mask.shape != (self._n,):
            raise ValueError(
                f"action_mask: the mask is {mask}; expected a number for each of {self._n} actions"
            )
        return mask
