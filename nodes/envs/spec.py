"""The columns of envs' observations and actions, known before they run."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import numpy as np

from flowrl.core.batch import Column, Schema
from flowrl.core.config import PartSpec
from flowrl.core.errors import shortened_repr
from flowrl.core.facts import MissingPackageError, UnsoundError
from flowrl.machine.user_calls import noted_call
from flowrl.nodes.observations import SEPARATOR, NestedColumns, ObsColumns

CALLING_PACKAGES = ("flowrl", "gymnasium", "gym", "importlib")  # they call an env's own code
CLOSE_TIMEOUT_S = 5.0
FRAMES = "flowrl_frames"  # attribute of a space of stacked frames: their number
SPACES = "Box, Discrete, MultiDiscrete or MultiBinary"


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What an env manager's clients know of it. A row is what acts by itself: an env or an agent."""

    obs: ObsColumns
    action: Column
    count: int  # rows of all envs
    agents: int = 1  # rows of each env
    records: bool = False  # whether what an env observes is a record of its agents, for `AgentRows`
    # Adjacent rows that step together: the agents of an env, or all rows of a pool.
    together: int = 1
    info: Schema = field(default_factory=dict)  # the listed entries of `info`
    takes_options: bool = True  # whether episodes can begin with options of `reset`
    # Of agents in groups: the spec of each group's rows. Then what an env observes is a record of all groups, and a row
    # is an env.
    groups: Mapping[str, EnvSpec] = field(default_factory=dict)


def require_one_policy(spec: EnvSpec) -> None:
    """Refuse envs whose agents are in groups, where one policy is to act for all."""
    if spec.groups:
        what = f"the agents of the env are in groups ({', '.join(spec.groups)}), and this node has one policy"
        hint = (
            "take a `group_collector` or a `group_evaluator`, which have a policy for each group, or leave the groups "
            "out"
        )
        raise UnsoundError(what, hint, "env.agents")


def obs_columns_of(obs: Any, where: str) -> ObsColumns:
    """The columns of observations, which may be given by their space."""
    if isinstance(obs, Column | NestedColumns):
        return obs
    return observation_columns(_space(obs, where))


def action_column_of(action: Any, where: str) -> Column:
    """The column of actions, which may be given by their space."""
    return action if isinstance(action, Column) else space_column(_space(action, where), "action")


def _space(found: Any, where: str) -> Any:
    if any(cls.__name__ == "Space" for cls in type(found).__mro__):
        return found
    raise TypeError(
        f"{where} is {shortened_repr(found)}; expected what `envs.spec()` says of it, or a space of gymnasium"
    )


def observation_columns(space: Any) -> ObsColumns:
    """The column of an observation space of gym or gymnasium, or the columns of its leaves."""
    if not _kind(space, _INNER):
        return space_column(space, "observation")
    found = dict(_leaves(space, ""))
    if not found:
        raise UnsoundError("observations are an empty space", "wrap the env", "env")
    return NestedColumns(found)


def _leaves(space: Any, path: str) -> Iterator[tuple[str, Column]]:
    kind = _kind(space, _INNER)
    if not kind:
        try:
            yield path, space_column(space, "observation")
        except UnsoundError as unsound:
            raise UnsoundError(f"'{path}': {unsound.what}", unsound.hint, unsound.key) from unsound
        return
    inner = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
    for key, one in inner:
        if not str(key) or SEPARATOR in str(key):
            what = f"observations have the key {key!r}"
            raise UnsoundError(what, f"a key is not empty and has no '{SEPARATOR}'", "env")
        yield from _leaves(one, f"{path}{SEPARATOR}{key}" if path else str(key))


def space_column(space: Any, what: str) -> Column:
    """The column of a space of gym or gymnasium; `what` is "observation" or "action"."""
    kind = _kind(space, _COLUMNS)
    if kind:
        return _COLUMNS[kind](space, what)
    name = type(space).__name__
    hint = f"wrap the env so that its {what}s are {SPACES}"
    if what == "observation":
        hint += ", or a Dict or Tuple of these"
    raise UnsoundError(f"{what}s are a {name} space, which is not supported", hint, "env")


def _kind(space: Any, known: Container[str]) -> str:
    """The name of a space's known class. Classes are compared by name, so either package may be missing."""
    return next((cls.__name__ for cls in type(space).__mro__ if cls.__name__ in known), "")


def _box(space: Any, what: str) -> Column:
    dtype = np.dtype(space.dtype)
    if dtype == np.float64:  # float64 takes twice the memory, and networks compute in float32
        dtype = np.dtype(np.float32)
    low, high = _bound(space.low, what), _bound(space.high, what)
    frames = getattr(space, FRAMES, None)
    return Column(str(dtype), tuple(space.shape), low=low, high=high, frames=frames)


def _discrete(space: Any, what: str) -> Column:
    if getattr(space, "start", 0) != 0:
        raise UnsoundError(
            f"{what}s are discrete and begin at {space.start}",
            "wrap the env so that they begin at 0",
            "env",
        )
    return Column("int64", n=int(space.n))


def _multi_discrete(space: Any, what: str) -> Column:
    if np.any(getattr(space, "start", 0)):
        raise UnsoundError(
            f"{what}s are discrete and begin at {space.start}",
            "wrap the env so that they begin at 0",
            "env",
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


_INNER = ("Dict", "Tuple")
_COLUMNS = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": _multi_binary,
}


def probe_columns(make: Callable[[], Any], name: str) -> tuple[ObsColumns, Column]:
    """The columns of an env that is made to find them."""
    with probe_env(make, name) as env:
        return observation_columns(env.observation_space), space_column(env.action_space, "action")


@contextmanager
def probe_env(make: Callable[[], Any], name: str) -> Iterator[Any]:
    """An env that is made to be looked at. It is closed, and left alone if that takes too long."""
    with noted_call(f"env '{name}' was being made"):
        env = make()
    try:
        yield env
    finally:
        with noted_call(f"env '{name}' was being closed"):
            closing = Thread(target=_close, args=(env,), name="flowrl-close", daemon=True)
            closing.start()
            closing.join(CLOSE_TIMEOUT_S)


def _close(env: Any) -> None:
    # Some envs can only be closed after a reset. Ctrl-C reaches the main thread only.
    with suppress(Exception, SystemExit, KeyboardInterrupt):
        env.close()


def env_columns(env: Any) -> tuple[ObsColumns, Column]:
    """The columns of an env part; any failure is an `UnsoundError`."""
    if env is None:
        raise UnsoundError("no env is given", "write `env: {id: CartPole-v1}`", "env")
    with failures_as_unsound():
        columns: tuple[ObsColumns, Column] = env_part(env).spec()
        return columns


@contextmanager
def failures_as_unsound(
    what: str = "the env cannot be made", hint: str = "correct its id or its arguments"
) -> Iterator[None]:
    """Raise any failure of an env's code as an `UnsoundError`, with the place in that code."""
    try:
        yield
    except UnsoundError:
        raise
    except (Exception, SystemExit) as error:  # an env's constructor may raise anything
        kind = MissingPackageError if isinstance(error, ModuleNotFoundError) else UnsoundError
        raise kind(
            f"{what}: {type(error).__name__}: {error}{_raising_place(error)}", hint, "env"
        ) from error


def _raising_place(error: BaseException) -> str:
    """The innermost line of the env's own code that an error came through, in words; empty if there is none."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package == "flowrl":
            place = ""  # what was before is flowrl's way to the env
        elif package not in CALLING_PACKAGES:
            place = f" ({frame.f_code.co_filename}, line {line})"
    return place


def evaluation_part(env: Any) -> Any:
    """The env part with its settings for evaluation, if it distinguishes these."""
    part = env_part(env)
    return part.for_evaluation() if hasattr(part, "for_evaluation") else part


def env_part(env: Any) -> Any:
    """The env part of a config's `env`, which may be a part, its spec, or functions that make envs."""
    from flowrl.nodes.envs.callables import CallableEnvs, env_makers

    makers = env_makers(env)
    if makers:
        return CallableEnvs(makers=makers)
    if isinstance(env, PartSpec):
        return env.make()
    if hasattr(env, "advance"):
        what = f"the env is a {type(env).__name__}, which is an env manager"
        raise UnsoundError(what, "give it as `envs`", "env")
    if not callable(getattr(env, "spec", None)):
        what = repr(env) if isinstance(env, str) else f"a {type(env).__name__}"
        if env is None:
            what = "env is None, which"
        hint = "give Gymnasium(id=…), a function that makes an env, or a list of such functions"
        raise UnsoundError(f"{what} does not describe an env", hint, "env")
    return env
