"""Choices counted from 0, whatever an env counts them from."""

from __future__ import annotations

from typing import Any

from gymnasium import Wrapper
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Space, Tuple


def make_zero_based(env: Any) -> Any:
    """The env; where its choices begin elsewhere, one that counts them from 0."""
    spaces = (env.observation_space, env.action_space)
    return ZeroBasedEnv(env) if any(map(_begins_elsewhere, spaces)) else env


class ZeroBasedEnv(Wrapper):
    """Policies and models know `n` choices, and no other first one than 0."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._seen = env.observation_space
        self._first = getattr(env.action_space, "start", 0)
        self.observation_space = _counted(env.observation_space)
        self.action_space = _counted(env.action_space)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """As the env does."""
        obs, info = self.env.reset(seed=seed, options=options)
        return _lowered(self._seen, obs), info

    def step(self, action: Any) -> Any:
        """The env's own choice."""
        obs, *rest = self.env.step(action + self._first)
        return _lowered(self._seen, obs), *rest


def _begins_elsewhere(space: Any) -> bool:
    if isinstance(space, Dict):
        return any(map(_begins_elsewhere, space.spaces.values()))
    if isinstance(space, Tuple):
        return any(map(_begins_elsewhere, space.spaces))
    if isinstance(space, Discrete | MultiDiscrete):
        return bool((space.start != 0) if isinstance(space, Discrete) else space.start.any())
    return False


def _counted(space: Any) -> Space[Any]:
    if isinstance(space, Dict):
        return Dict({key: _counted(inner) for key, inner in space.spaces.items()})
    if isinstance(space, Tuple):
        return Tuple([_counted(inner) for inner in space.spaces])
    if isinstance(space, Discrete):
        return Discrete(space.n)
    return MultiDiscrete(space.nvec) if isinstance(space, MultiDiscrete) else space


def _lowered(space: Any, obs: Any) -> Any:
    if isinstance(space, Dict):
        return {key: _lowered(inner, obs[key]) for key, inner in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(_lowered(inner, one) for inner, one in zip(space.spaces, obs, strict=True))
    return obs - space.start if isinstance(space, Discrete | MultiDiscrete) else obs
