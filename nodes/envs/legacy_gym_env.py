"""Adapts envs and spaces of the old gym package to gymnasium's interface."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium import spaces

from flowrl.nodes.envs.entry_points import import_package


class LegacyGymEnv(gymnasium.Env):
    def __init__(self, env: Any, max_episode_steps: int | None = None) -> None:
        self._env = env
        self._limit, self._steps = max_episode_steps, 0
        self.observation_space = convert_space(env.observation_space)
        self.action_space = convert_space(env.action_space)
        self._inner = getattr(env, "unwrapped", env)
        taken = inspect.signature(self._inner.reset).parameters
        self._reset_takes_seed, self._reset_takes_options = "seed" in taken, "options" in taken

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._steps = 0
        if options and not self._reset_takes_options:
            raise ValueError(
                f"{type(self._inner).__name__}.reset takes no `options`; leave `reset_options` out, or add it"
            )
        given = {"options": options} if options else {}
        if self._reset_takes_seed:
            result = self._env.reset(seed=seed, **given)
        else:
            if seed is not None:
                self._seed_env(seed)
            result = self._env.reset(**given)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def _seed_env(self, seed: int) -> None:
        if hasattr(self._env, "seed"):
            self._env.seed(seed)
        elif hasattr(self._inner, "_np_random"):
            # In gym 0.26 `gym.Env.reset`, which this env overrides, sets `np_random`.
            import_package("gym", "pip install gym").Env.reset(self._inner, seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self._env.step(action)
        self._steps += 1
        if len(result) == 5:
            obs, reward, terminated, truncated, info = result
        else:
            obs, reward, done, info = result
            truncated = bool(done and info.get("TimeLimit.truncated", False))
            terminated = bool(done) and not truncated
        truncated = truncated or self._steps == self._limit
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        self._env.close()


def convert_space(space: Any) -> Any:
    """Convert a space of gym to gymnasium; one of an unknown kind is returned as it is, and refused later."""
    kind = next((c.__name__ for c in type(space).__mro__ if c.__name__ in _SPACES), "")
    if isinstance(space, spaces.Space) or not kind:
        return space
    converted: Callable[[Any], spaces.Space[Any]] = _SPACES[kind]
    return converted(space)


_SPACES = {
    "Box": lambda old: spaces.Box(old.low, old.high, dtype=old.dtype.type),
    "Discrete": lambda old: spaces.Discrete(int(old.n), start=int(getattr(old, "start", 0))),
    "MultiDiscrete": lambda old: spaces.MultiDiscrete(old.nvec),
    "MultiBinary": lambda old: spaces.MultiBinary(old.n),
    "Dict": lambda old: spaces.Dict({k: convert_space(s) for k, s in old.spaces.items()}),
    "Tuple": lambda old: spaces.Tuple([convert_space(s) for s in old.spaces]),
}
