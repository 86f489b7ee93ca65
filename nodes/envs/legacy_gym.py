"""Envs of the old gym package; its interface ends here."""

from __future__ import annotations

import inspect
from typing import Any

from flowrl.config import Config as BaseConfig
from flowrl.config import param
from flowrl.nodes.envs.gymnasium import Gymnasium, entry_point, package, unknown_id

INSTALL = "pip install 'gym>=0.21,<0.27'"


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
        entry, limit = entry_point(self.config.id), self.config.max_episode_steps
        if entry is not None:
            return Modern(entry(**self.config.kwargs), limit)
        env = self._registered_gym()
        limit = limit or getattr(getattr(env, "spec", None), "max_episode_steps", None)
        return Modern(_peeled(env, limit), limit)

    def _registered_gym(self) -> Any:
        gym = package("gym", INSTALL)
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
        self._inner = getattr(env, "unwrapped", env)
        self._reset_takes_seed = "seed" in inspect.signature(self._inner.reset).parameters

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The first observation of an episode, and its info."""
        self._steps = 0
        if self._reset_takes_seed:
            result = self._env.reset(seed=seed)
        else:
            if seed is not None:
                self._seed(seed)
            result = self._env.reset()
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
            return result
        return result, {}

    def _seed(self, seed: int) -> None:
        if hasattr(self._env, "seed"):
            self._env.seed(seed)
        elif hasattr(self._inner, "_np_random"):  # gym 0.26: its own `reset`, which this env
            package("gym", INSTALL).Env.reset(self._inner, seed=seed)  # replaced, sets `np_random`

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


def _peeled(env: Any, limit: int | None) -> Any:
    """Without the wrappers of `gym.make`: those of gym 0.26 break on a step of four results.

    `Modern` counts the steps itself, and whoever uses it begins with a reset.
    """
    for name in ("TimeLimit", "OrderEnforcing") if limit else ("OrderEnforcing",):
        if type(env).__name__ == name and type(env).__module__.startswith("gym."):
            env = env.env
    return env


def _specs(registry: Any) -> Any:
    # a dictionary in gym 0.26, an object with `all` before
    return registry.values() if hasattr(registry, "values") else registry.all()
