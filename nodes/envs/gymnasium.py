"""Envs of the gymnasium package, by id or by import path."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

from flowrl.batch import Column
from flowrl.config import Config as BaseConfig
from flowrl.config import Part, param
from flowrl.node import Unsound
from flowrl.nodes.envs.spec import column, observed
from flowrl.nodes.observations import Observed

INTERFACE = ("observation_space", "action_space", "reset", "step", "close")


class Gymnasium(Part):
    """An env with gymnasium's interface."""

    kind = "env"

    class Config(BaseConfig):
        id: str = param(..., "a registered id, or `package.module:Class`", min_length=1)
        kwargs: dict[str, Any] = param({}, "arguments of the env's constructor")
        max_episode_steps: int | None = param(
            None, "steps after which an episode is truncated; default: what the id says", ge=1
        )

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._spec: tuple[Observed, Column] | None = None

    def spec(self) -> tuple[Observed, Column]:
        """The columns of observations and actions; one env is made to see them."""
        if self._spec is None:
            env = self.make(0)
            try:
                self._spec = observed(env.observation_space), column(env.action_space, "action")
            finally:
                env.close()
        return self._spec

    def make(self, index: int) -> Any:
        """One more env; `index` is its place among its manager's envs."""
        gymnasium = package("gymnasium", "pip install gymnasium")
        entry = entry_point(self.config.id)
        if entry is None:
            return self._registered(gymnasium)
        env = entry(**self.config.kwargs)
        missing = [name for name in INTERFACE if not hasattr(env, name)]
        if missing:
            what = f"'{self.config.id}' has no '{missing[0]}'"
            raise Unsound(what, "an env is a subclass of gymnasium.Env", "env.id")
        if self.config.max_episode_steps is None:
            return env
        return gymnasium.wrappers.TimeLimit(env, self.config.max_episode_steps)

    def _registered(self, gymnasium: Any) -> Any:
        c = self.config
        try:
            return gymnasium.make(
                c.id, max_episode_steps=c.max_episode_steps, disable_env_checker=True, **c.kwargs
            )
        except gymnasium.error.DependencyNotInstalled as missing:
            raise Unsound(
                f"the env '{c.id}' needs a package: {missing}", "install it", "env.id"
            ) from missing
        except (gymnasium.error.Error, ModuleNotFoundError) as unknown:
            raise unknown_id(c.id, gymnasium.registry, unknown) from unknown


def package(name: str, hint: str) -> Any:
    """An env package; that it is missing is said with how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise Unsound(f"the package '{name}' is not installed", hint) from missing


def entry_point(id: str) -> Any:
    """The class that `package.module:Class` names; None for an id (even `module:Id-v0`)."""
    module, _, name = id.partition(":")
    if not name or not name.isidentifier():
        return None
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        raise Unsound(
            f"cannot import '{module}': {missing}", "mend the path", "env.id"
        ) from missing
    except AttributeError as missing:
        raise Unsound(f"'{module}' has no '{name}'", "mend the path", "env.id") from missing


def unknown_id(id: str, registry: Mapping[str, Any], cause: Exception) -> Unsound:
    """The error for an id that its package does not know."""
    near = difflib.get_close_matches(id, registry, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "is its package installed?"
    return Unsound(f"cannot make the env '{id}': {cause}", hint, "env.id")
