"""What is known of envs before they run: the columns of their observations and actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.batch import Column
from flowrl.config import PartSpec
from flowrl.node import Unsound

WRAP = "wrap the env so that it has a Box, Discrete, MultiDiscrete or MultiBinary space"


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What an env manager tells whoever links to it."""

    obs: Column
    action: Column
    count: int


def column(space: Any, what: str) -> Column:
    """The column of a space of gym or gymnasium; `what` is "observation" or "action"."""
    for cls in type(space).__mro__:  # by name, so that either package may be missing
        if cls.__name__ in _COLUMNS:
            return _COLUMNS[cls.__name__](space, what)
    name = type(space).__name__
    raise Unsound(f"{what}s are a {name} space, which is not supported", WRAP, "env")


def _box(space: Any, what: str) -> Column:
    dtype = np.dtype(space.dtype)
    if dtype == np.float64:  # twice the memory, for digits that no network sees
        dtype = np.dtype(np.float32)
    return Column(
        str(dtype), tuple(space.shape), low=_bound(space.low, what), high=_bound(space.high, what)
    )


def _discrete(space: Any, what: str) -> Column:
    if getattr(space, "start", 0) != 0:
        raise Unsound(
            f"{what}s are discrete and begin at {space.start}",
            "wrap the env so that they begin at 0",
            "env",
        )
    return Column("int64", n=int(space.n))


def _multi_discrete(space: Any, what: str) -> Column:
    if np.any(getattr(space, "start", 0)):
        raise Unsound(
            f"{what}s are discrete and begin at {space.start}", "make them begin at 0", "env"
        )
    high = np.asarray(space.nvec) - 1
    return Column(
        "int64", tuple(space.shape), low=_bound(np.zeros_like(high), what), high=_bound(high, what)
    )


def _multi_binary(space: Any, what: str) -> Column:
    return Column("int8", tuple(space.shape), n=2, low=0.0, high=1.0)


def _bound(values: Any, what: str) -> float | tuple[float, ...]:
    flat = np.asarray(values).reshape(-1)
    if what == "observation" and flat.size and np.all(flat == flat[0]):
        return float(flat[0])  # an image has tens of thousands of equal bounds
    return tuple(float(value) for value in flat)


_COLUMNS = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
}


def columns_of(env: Any) -> tuple[Column, Column]:
    """The columns of an env part, ready or as the graph gives it; any failure is `Unsound`."""
    if env is None:
        raise Unsound("no env is given", "write `env: {id: CartPole-v1}`", "env")
    try:
        return ready(env).spec()
    except Unsound:
        raise
    except Exception as broken:  # an env's constructor may raise anything
        raise Unsound(
            f"the env cannot be made: {type(broken).__name__}: {broken}",
            "mend its id or its arguments",
            "env",
        ) from broken


def ready(env: Any) -> Any:
    """The env part itself."""
    return env.make() if isinstance(env, PartSpec) else env
