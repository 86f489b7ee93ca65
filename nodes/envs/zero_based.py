"""Makes envs count the choices of Discrete and MultiDiscrete spaces from 0, whatever they start from."""

from __future__ import annotations

from typing import Any

from gymnasium import Wrapper
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Tuple


def make_zero_based(env: Any) -> Any:
    """Wrap the env if a space of choices starts elsewhere than at 0; else return it as it is."""
    spaces = (env.observation_space, env.action_space)
    return ZeroBasedEnv(env) if any(map(_has_other_start, spaces)) else env


class ZeroBasedEnv(Wrapper):
    """Policies and models assume `n` choices, the first of which is 0."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._obs_space = env.observation_space
        self._first_action = getattr(env.action_space, "start", 0)
        self.observation_space = _shifted_space(env.observation_space)
        self.action_space = _shifted_space(env.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = self.env.reset(seed=seed, options=options)
        return _shifted_obs(self._obs_space, obs), info

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action + self._first_action)
        return _shifted_obs(self._obs_space, obs), *rest


def _has_other_start(space: Any) -> bool:
    if isinstance(space, Dict):
        return any(map(_has_other_start, space.spaces.values()))
    if isinstance(space, Tuple):
        return any(map(_has_other_start, space.spaces))
    if isinstance(space, Discrete | MultiDiscrete):
        return bool((space.start != 0) if isinstance(space, Discrete) else space.start.any())
    return False


def _shifted_space(space: Any) -> Any:
    if isinstance(space, Dict):
        return Dict({key: _shifted_space(inner) for key, inner in space.spaces.items()})
    if isinstance(space, Tuple):
        return Tuple([_shifted_space(inner) for inner in space.spaces])
    if isinstance(space, Discrete):
        return Discrete(space.n)
    return MultiDiscrete(space.nvec) if isinstance(space, MultiDiscrete) else space


def _shifted_obs(space: Any, obs: Any) -> Any:
    if isinstance(space, Dict):
        return {key: _shifted_obs(inner, obs[key]) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        pairs = zip(space.spaces, obs, strict=True)
        return tuple(_shifted_obs(inner, one) for inner, one in pairs)
    return obs - space.start if isinstance(space, Discrete | MultiDiscrete) else obs
