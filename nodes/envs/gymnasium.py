"""Envs of the gymnasium package, by id or by import path."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import field_validator

from flowrl.core.batch import Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param, parts
from flowrl.core.facts import MissingPackageError, UnsoundError
from flowrl.nodes.envs.entry_points import (
    import_entry_point,
    import_package,
    install_hint,
    package_needed_by,
    register_package_of,
    require_interface,
)
from flowrl.nodes.envs.info import InfoSetting, check_setting
from flowrl.nodes.envs.spec import probe_columns
from flowrl.nodes.envs.wrappers.wrapper import for_any_purpose, select_for_purpose, wrap_env
from flowrl.nodes.observations import ObsColumns

CLOSE_NAME = 0.75  # the least similarity of names that may be spelling mistakes


class Gymnasium(Part):
    """An env with gymnasium's interface."""

    kind = "env"

    class Config(BaseConfig):
        id: str = param(
            ..., "a registered id, or `package.module:Name` of a class or function", min_length=1
        )
        kwargs: dict[str, Any] = param({}, "arguments of the env's constructor")
        each: list[dict[str, Any]] = param(
            [], "arguments that differ between envs: env i takes entry i modulo their number"
        )
        max_episode_steps: int | None = param(
            None,
            "steps after which an episode is truncated; default: the limit of the registered id",
            ge=1,
        )
        wrappers: Any = parts("wrapper", "the wrappers of each env, innermost first")
        info: InfoSetting = param(
            {},
            "entries of `info` that become columns: names with their types, such as "
            "`{is_success: bool}`, or a list of names",
        )

        @field_validator("info", mode="before")
        @classmethod
        def _check_info(cls, setting: Any) -> InfoSetting:
            return check_setting(setting)

    def __init__(self, config: BaseConfig | None = None, /, **params: Any) -> None:
        super().__init__(config, **params)
        self._spec: tuple[ObsColumns, Column] | None = None

    def spec(self) -> tuple[ObsColumns, Column]:
        """The columns of observations and actions; one env is made to find them."""
        if self._spec is None:
            self._spec = probe_columns(lambda: self.make(0), self.config.id)
        return self._spec

    def make(self, index: int) -> Any:
        """Make an env; `index` counts the envs of all replicas of a manager."""
        from flowrl.nodes.envs.zero_based import make_zero_based

        env = make_zero_based(self.make_unwrapped(index))
        return wrap_env(env, select_for_purpose(self.config.wrappers, "collect"))

    def for_evaluation(self) -> Gymnasium:
        """The same env with its wrappers for evaluation."""
        chosen = select_for_purpose(self.config.wrappers, "evaluate")
        config = self.config.model_copy(update={"wrappers": tuple(map(for_any_purpose, chosen))})
        return type(self)(config)

    def make_unwrapped(self, index: int) -> Any:
        """Make an env without wrappers, with gymnasium's interface."""
        gymnasium = import_package("gymnasium", "pip install gymnasium")
        entry = import_entry_point(self.config.id)
        if entry is None:
            return self._make_registered(gymnasium, index)
        env = entry(**self.arguments(index))
        require_interface(env, f"'{self.config.id}'")
        if self.config.max_episode_steps is None:
            return env
        return gymnasium.wrappers.TimeLimit(env, self.config.max_episode_steps)

    def arguments(self, index: int) -> dict[str, Any]:
        """The arguments of one env's constructor."""
        each = self.config.each
        return {**self.config.kwargs, **(each[index % len(each)] if each else {})}

    def _make_registered(self, gymnasium: Any, index: int) -> Any:
        c = self.config
        options = {"max_episode_steps": c.max_episode_steps, "disable_env_checker": True}
        register_package_of(c.id)
        try:
            return _remove_order_check(
                gymnasium.make(c.id, **options, **self.arguments(index)), gymnasium
            )
        except gymnasium.error.DependencyNotInstalled as missing:
            needed = package_needed_by(c.id)
            what = f"needs the package '{needed}'" if needed else f"lacks a package: {missing}"
            raise MissingPackageError(
                f"the env '{c.id}' {what}", install_hint(needed), "env.id"
            ) from missing
        except (gymnasium.error.Error, ModuleNotFoundError) as unknown:
            raise unknown_id(c.id, gymnasium.registry, unknown) from unknown


def _remove_order_check(env: Any, gymnasium: Any) -> Any:
    """Remove the wrapper that checks in each step that there was a reset, because managers ensure that."""
    order_check, inner = gymnasium.wrappers.OrderEnforcing, env
    if isinstance(env, order_check):
        return env.env
    while isinstance(inner, gymnasium.Wrapper):
        if isinstance(inner.env, order_check):
            inner.env = inner.env.env
            break
        inner = inner.env
    return env


def unknown_id(id: str, registry: Mapping[str, Any], cause: Exception) -> UnsoundError:
    """The error for an id that its package does not know."""
    module, colon, name = id.rpartition(":")
    missing = getattr(cause.__cause__, "name", None)  # gymnasium could not import the module
    if missing and f"{module}.".startswith(f"{missing}."):
        what = f"cannot make the env '{id}': there is no module '{missing}'"
        hint = "install its package, or put the module beside the graph"
        return MissingPackageError(what, hint, "env.id")
    near = [f"{module}{colon}{n}" for n in difflib.get_close_matches(name, registry, 3, CLOSE_NAME)]
    hint = (
        "is its package installed? An env that another package or a module beside the graph registers is "
        f"`{module or 'package'}:{name}` (other processes do not know what a script registers); a class of your own "
        "is `package.module:Name`"
    )
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    why = str(cause).partition(" Did you mean")[0].rstrip(".")
    kind = UnsoundError if near else MissingPackageError
    return kind(f"cannot make the env '{id}': {why}", hint, "env.id")
