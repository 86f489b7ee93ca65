"""What is named by an import path, and packages that may be missing."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from flowrl.core.node import MissingPackageError, UnsoundError


def import_package(name: str, hint: str) -> Any:
    """An env package; that it is missing is said with how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise MissingPackageError(f"the package '{name}' is not installed", hint) from missing


def import_entry_point(id: str) -> Any:
    """The class or function that `package.module:Name` names; None for an id (even `module:Id-v0`)."""
    module, _, name = id.partition(":")
    if not name or not name.isidentifier():
        return None
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        raise MissingPackageError(
            f"cannot import '{module}': {missing}", install_hint(module), "env.id"
        ) from missing
    except AttributeError as missing:
        raise UnsoundError(f"'{module}' has no '{name}'", "mend the path", "env.id") from missing


INTERFACE = ("observation_space", "action_space", "reset", "step", "close")


def require_interface(
    env: Any,
    maker: str,
    interface: Sequence[str] = INTERFACE,
    hint: str = "an env is a subclass of gymnasium.Env",
) -> None:
    """Raises `Unsound` where somebody made something that is no env, or not of the kind that is wanted."""
    missing = [name for name in interface if not hasattr(env, name)]
    if missing:
        what = f"{maker} gives a {type(env).__name__}, which has no '{missing[0]}'"
        raise UnsoundError(what, hint, "env.id")


EXTRAS = {  # package: the extra that installs it
    "ale_py": "atari",
    "Box2D": "box2d",
    "mujoco": "mujoco",
    "minigrid": "minigrid",
    "pettingzoo": "pettingzoo",
}


def install_hint(module: str) -> str:
    """How to get what a missing module belongs to."""
    root = module.partition(".")[0]
    if root in EXTRAS:
        return f"pip install 'flowrl[{EXTRAS[root]}]'"
    return "mend the path, or install its package"
