"""Ids of gymnasium's registry, and the packages that their envs come from."""

from __future__ import annotations

import importlib.util

from flowrl.core.node import MissingPackageError
from flowrl.nodes.envs.entry_points import import_package, install_hint

REGISTERED_BY = {"ALE": "ale_py", "MiniGrid": "minigrid", "BabyAI": "minigrid"}  # of ids: who
BOX2D = ("LunarLander", "BipedalWalker", "CarRacing")
MUJOCO = (
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


def register_package_of(id: str) -> None:
    """Imports the package that registers an id, if it is one that gymnasium does not know itself."""
    name = _registered_by(id)
    if name is None:
        return
    if not _is_there(name):
        what = f"the env '{id}' needs the package '{name}'"
        raise MissingPackageError(what, install_hint(name), "env.id")
    import_package("gymnasium", "pip install gymnasium").register_envs(
        import_package(name, install_hint(name))
    )


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # somebody has put something else in its place
        return False


def package_needed_by(id: str) -> str:
    """The package that an env of gymnasium's own needs; empty where none is known."""
    name = id.partition(":")[2] or id
    if name.startswith(BOX2D):
        return "Box2D"
    return "mujoco" if name.startswith(MUJOCO) else _registered_by(id) or ""


def _registered_by(id: str) -> str | None:
    root = id.partition("/")[0] if "/" in id else id.partition("-")[0]
    return REGISTERED_BY.get(root)
