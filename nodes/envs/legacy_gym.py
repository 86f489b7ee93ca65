"""Envs of the old gym package; its interface ends here, nothing behind this file knows it."""

from __future__ import annotations

import inspect
from typing import Any

from flowrl.config import Config as BaseConfig
from flowrl.config import param
from flowrl.nodes.envs.gymnasium import Gymnasium, entry_point, package, unknown_id


class LegacyGym(Gymnasium):
    """An env with the interface of gym: four or five results of a step, one or two of a reset."""

    class Config(BaseConfig):
        id: str = param(..., "an id registered with gym, or `package.module:Class`", min_length=1)
        kwargs: dict[str, Any] = param({}, "arguments of the env's constructor")
        max_episode_steps: int | None = param(
            None, "steps after which an episode is truncated; default: what the id says", ge=1
        )

    def make(self, index: int) -> Any:
        """One more env; `index` is its place among its manager's envs."""
        entry = entry_point(self.config.id)
        env = self._registered_gym() if entry is None else entry(**self.config.kwargs)
        return Modern(env, self.config.max_episode_steps)

    def _registered_gym(self) -> Any:
        gym = package("gym", "pip install 'gym>=0.21,<0.27'")
        c = self.config
        wished = {"max_episode_steps": c.max_episode_steps, "disable_env_checker": True}
        known = inspect.signature(
            gym.make
        ).parameters  # the checker, where there is one, fails with numpy 2
        options = {k: v for k, v in wished.items() if k in known}
        try:
            return gym.make(c.id, **options, **c.kwargs)
        except gym.error.Error as unknown:
            ids = {spec.id: spec for spec in _specs(gym.envs.registry)}
            raise unknown_id(c.id, ids, unknown) from unknown


class Modern:
    """An old env behind the interface of gymnasium."""

    def __init__(self, env: Any, max_episode_steps: int | None = None) -> None:
        self._env = env
        self._limit, self._steps = max_episode_steps, 0
        self.observation_space, self.action_space = env.observation_space, env.action_space
        inner = getattr(env, "unwrapped", env)
        self._reset_takes_seed = "seed" in inspect.signature(inner.reset).parameters

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode, and its info."""
        self._steps = 0
        if self._reset_takes_seed:
            result = self._env.reset(seed=seed)
        else:
            if seed is not None:
                self._env.seed(seed)
            result = self._env.reset()
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated, info."""
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
        """Give back windows and processes."""
        self._env.close()


def _specs(registry: Any) -> Any:
    # a dictionary in gym 0.26, an object with `all` before
    return registry.values() if hasattr(registry, "values") else registry.all()
