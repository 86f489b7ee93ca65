"""Finds envs by import path, or by the id that a package registers with gymnasium. Packages may be missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from flowrl.core.errors import closest_word
from flowrl.core.facts import MissingPackageError, UnsoundError
from flowrl.core.import_paths import (
    STANDARD_LIBRARY_HINT,
    StandardLibraryError,
    import_object,
    refuse_standard_library,
    without_arguments,
)

METHODS = ("reset", "step")  # of the class of any env or wrapper
INTERFACE = ("observation_space", "action_space", *METHODS, "close")
EXTRAS = {  # package: the extra that installs it
    "ale_py": "atari",
    "Box2D": "box2d",
    "mujoco": "mujoco",
    "lbforaging": "foraging",
    "minigrid": "minigrid",
    "mpe2": "mpe",
    "pettingzoo": "pettingzoo",
    "rware": "rware",
    "sumo": "traffic",
    "sumo_rl": "traffic",
}
# by the namespace of ids
REGISTERING_PACKAGES = {
    "ALE": "ale_py",
    "BabyAI": "minigrid",
    "Foraging": "lbforaging",
    "MiniGrid": "minigrid",
    "rware": "rware",
}
BOX2D_ENVS = ("LunarLander", "BipedalWalker", "CarRacing")
MUJOCO_ENVS = (
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
)


def import_package(name: str, hint: str) -> Any:
    """Import an env package; `hint` says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise MissingPackageError(f"the package '{name}' is not installed", hint) from missing


def import_entry_point(id: str, kind: str = "env") -> Any:
    """The class or function that `package.module:Name` names; None for an id (even `module:Id-v0`).

    It is seen to be what can make an env or a wrapper, and not called.
    """
    module, _, name = id.partition(":")
    if not name:
        return None
    try:
        refuse_standard_library(id)
        if not name.isidentifier():
            return None
        found = import_object(id)
    except StandardLibraryError as refused:
        raise UnsoundError(refused.what, STANDARD_LIBRARY_HINT, "env.id") from refused
    except ModuleNotFoundError as missing:
        root, what = module.partition(".")[0], f"cannot import '{module}': {missing}"
        if root in EXTRAS and importlib.util.find_spec(root) is None:
            what = f"'{id}' needs the package '{root}'"
        hint = install_hint(missing.name or module)
        raise MissingPackageError(what, hint, "env.id") from missing
    except TypeError as error:  # of a path that begins with a dot
        if not module.startswith("."):
            raise
        what = f"cannot import '{module}', which is no name of a module"
        raise UnsoundError(what, "write `package.module:Name`", "env.id") from error
    except AttributeError as missing:
        near = closest_word(name, [n for n in dir(missing.obj) if not n.startswith("_")])
        hint = f"did you mean '{module}:{near}'?" if near else "correct the path"
        raise UnsoundError(f"'{module}' has no '{name}'", hint, "env.id") from missing
    require_maker(found, f"'{id}'", kind)
    return found


def require_maker(found: Any, name: str, kind: str = "env") -> None:
    """Raise `UnsoundError` for what is neither a function nor a class with the methods of an env."""
    called = without_arguments(found)
    what = ""
    if not callable(called):
        what = f"{name} is a {type(called).__name__}, which is neither a class nor a function"
    elif isinstance(called, type) and not hasattr(called, "__getattr__"):
        missing = [method for method in METHODS if not hasattr(called, method)]
        what = f"{name} is a class without the method '{missing[0]}'" if missing else ""
    if what:
        base = "gymnasium.Env" if kind == "env" else "gymnasium.Wrapper"
        hint = f"name a subclass of {base}, or a function that makes the {kind}"
        raise UnsoundError(what, hint, "env.id")


def require_interface(
    env: Any,
    maker: str,
    interface: Sequence[str] = INTERFACE,
    hint: str = "an env is a subclass of gymnasium.Env",
) -> None:
    """Raise `UnsoundError` if what `maker` made lacks an attribute of the interface."""
    missing = [name for name in interface if not hasattr(env, name)]
    if missing:
        what = f"{maker} returns a {type(env).__name__}, which has no '{missing[0]}'"
        raise UnsoundError(what, hint, "env.id")


def install_hint(module: str) -> str:
    """How to install the package that a missing module belongs to."""
    root = module.partition(".")[0]
    if root in EXTRAS:
        return f"pip install 'flowrl[{EXTRAS[root]}]'"
    return "correct the path, or install its package"


def register_package_of(id: str) -> None:
    """Import the package that registers this id, unless gymnasium registers it itself."""
    name = _registering_package(id)
    if name is None:
        return
    if not _is_installed(name):
        what = f"the env '{id}' needs the package '{name}'"
        raise MissingPackageError(what, install_hint(name), "env.id")
    import_package("gymnasium", "pip install gymnasium").register_envs(
        import_package(name, install_hint(name))
    )


def package_needed_by(id: str) -> str:
    """The package that one of gymnasium's own envs needs; empty if none is known."""
    name = id.partition(":")[2] or id
    if name.startswith(BOX2D_ENVS):
        return "Box2D"
    return "mujoco" if name.startswith(MUJOCO_ENVS) else _registering_package(id) or ""


def _registering_package(id: str) -> str | None:
    root = id.partition("/")[0] if "/" in id else id.partition("-")[0]
    return REGISTERING_PACKAGES.get(root)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # sys.modules holds a stand-in without a spec
        return False
