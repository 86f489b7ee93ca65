"""Envs of the old gym package, versions 0.21 to 0.26."""

from __future__ import annotations

import inspect
from typing import Any

from flowrl.core.config import param
from flowrl.nodes.envs.entry_points import import_entry_point, import_package
from flowrl.nodes.envs.gymnasium import Gymnasium, unknown_id

INSTALL = "pip install 'gym>=0.21,<0.27'"


class LegacyGym(Gymnasium):
    """An env with the interface of gym: four or five results of a step, one or two of a reset."""

    class Config(Gymnasium.Config):
        id: str = param(..., "an id registered with gym, or `package.module:Name`", min_length=1)

    def make_unwrapped(self, index: int) -> Any:
        from flowrl.nodes.envs.legacy_gym_env import LegacyGymEnv

        entry, limit = import_entry_point(self.config.id), self.config.max_episode_steps
        if entry is not None:
            return LegacyGymEnv(entry(**self.arguments(index)), limit)
        env = self._make_registered_gym(index)
        limit = limit or getattr(getattr(env, "spec", None), "max_episode_steps", None)
        return LegacyGymEnv(_strip_gym_wrappers(env, limit), limit)

    def _make_registered_gym(self, index: int) -> Any:
        gym = import_package("gym", INSTALL)
        c = self.config
        # The env checker, where this version has one, fails with numpy 2.
        wanted = {"max_episode_steps": c.max_episode_steps, "disable_env_checker": True}
        known = inspect.signature(gym.make).parameters
        options = {k: v for k, v in wanted.items() if k in known}
        try:
            return gym.make(c.id, **options, **self.arguments(index))
        except gym.error.Error as unknown:
            ids = {spec.id: spec for spec in _registered_specs(gym.envs.registry)}
            raise unknown_id(c.id, ids, unknown) from unknown


def _strip_gym_wrappers(env: Any, limit: int | None) -> Any:
    """Take off the wrappers of `gym.make`: those of gym 0.26 break on a step of four results.

    `LegacyGymEnv` counts the steps itself, and its callers always reset first.
    """
    for name in ("TimeLimit", "OrderEnforcing") if limit else ("OrderEnforcing",):
        if type(env).__name__ == name and type(env).__module__.startswith("gym."):
            env = env.env
    return env


def _registered_specs(registry: Any) -> Any:
    # gym 0.26 has a dictionary, earlier versions an object with `all`
    return registry.values() if hasattr(registry, "values") else registry.all()
