"""The entries of `info` that become columns: their types, and how they are read in each step.

Only listed entries are carried. An entry that a step's `info` lacks is false, or NaN. An integer has no
such value, so an env whose `info` lacks one has failed.
"""

from __future__ import annotations

import math
import re
import reprlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.errors import shortened_repr, spelling_hint
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.output_checks import NUMERIC_KINDS, InvalidOutputError
from flowrl.nodes.envs.spec import EnvSpec, env_part, failures_as_unsound, probe_env

PREFIX = "info/"  # of the columns
SHOWN_STEPS = 100  # of an episode, to see what an env offers
NOTE_S = 2.0  # at most, if that is only for a note
DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float32", "float64")
EXPECTED = f"{', '.join(DTYPES)}, or an array such as float32[3]"

InfoSetting = dict[str, str] | list[str]  # names with their types, or names


def parse_type(name: str, text: Any) -> Column:
    """The column of an entry whose type is written as `bool` or `float32[3]`."""
    match = re.fullmatch(r"(\w+)(?:\[(\d+(?:,\d+)*)\])?", str(text).replace(" ", ""))
    if match is None or match[1] not in DTYPES:
        raise ValueError(f"info.{name} is {text!r}; expected {EXPECTED}")
    return Column(match[1], tuple(map(int, match[2].split(","))) if match[2] else ())


def check_setting(setting: Any) -> InfoSetting:
    """Raise `ValueError` if the setting is neither names with types nor a list of different names."""
    if not isinstance(setting, dict | list) or not all(isinstance(name, str) for name in setting):
        raise ValueError(
            f"info is {shortened_repr(setting)}; expected names with their types, such as "
            "{is_success: bool}, or a list of names"
        )
    if "" in setting or len(set(setting)) < len(setting):
        raise ValueError("info: a name is empty, or given twice")
    if isinstance(setting, dict):
        for name, text in setting.items():
            parse_type(name, text)
    return setting


def info_columns(env: Any) -> Schema:
    """The listed entries of an env part's `info`. If they are listed without types, an env is played to see these."""
    part = env_part(env)
    setting: InfoSetting = getattr(part.config, "info", {})
    if isinstance(setting, dict):
        return {name: parse_type(name, text) for name, text in setting.items()}
    if not setting:
        return {}
    with failures_as_unsound("the env fails when it is played", "correct the env"):
        offered = offered_info(part, setting)
    for name in setting:
        if name not in offered:
            raise UnsoundError(
                f"the env's info had no '{name}' in {SHOWN_STEPS} steps; it had "
                f"{', '.join(offered) or 'nothing'}",
                f"{spelling_hint(name, offered)} (or give its type: `info: {{{name}: bool}}`)",
                "env.info",
            )
    return {name: offered[name] for name in setting}


def offered_info(
    part: Any, wanted: Iterable[str] = (), longest_s: float = math.inf
) -> dict[str, Column]:
    """The entries of an env's `info` that can be columns, seen in an episode with random actions.

    With `wanted`, it is played only until all of these were seen.
    """
    deadline = time.monotonic() + longest_s
    offered: dict[str, Column] = {}
    is_shared = getattr(part.config, "agents", "") == "shared"
    with probe_env(lambda: part.make(0), str(getattr(part.config, "id", "of a function"))) as env:
        space = env.action_space
        space.seed(0)
        env.reset(seed=0)
        for _ in range(SHOWN_STEPS):
            _, _, terminated, truncated, info = env.step(space.sample())
            require_mapping(info)
            for entries in info.values() if is_shared else [info]:
                _add_types(offered, entries)
            has_all = wanted and offered.keys() >= set(wanted)
            if terminated or truncated or has_all or time.monotonic() > deadline:
                break
    return offered


def info_notes(env: Any, listed: Schema) -> tuple[str, ...]:
    """What an env's `info` offers beyond what is listed, in words."""
    try:
        offered = offered_info(env_part(env), longest_s=NOTE_S)
    except (Exception, SystemExit) as error:  # an env that fails is reported where it is used
        return (
            f"its env was played with random actions, and raised {type(error).__name__}: {error}",
        )
    others = [f"{name}: {column}" for name, column in offered.items() if name not in listed]
    if not others:
        return ()
    return (
        f"its env offers info that is not listed: {', '.join(others)} "
        f"(`env: {{info: [{others[0].partition(':')[0]}]}}` makes a column of it)",
    )


def _add_types(offered: dict[str, Column], info: Mapping[str, Any], path: str = "") -> None:
    for key, value in info.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping):
            _add_types(offered, value, f"{name}/")
            continue
        with suppress(ValueError):  # of different lengths
            array = np.asarray(value)
            if name not in offered and array.dtype.kind in NUMERIC_KINDS:
                python_float = type(value) is float or array.dtype == np.float64
                dtype = "float32" if python_float else str(array.dtype)
                if dtype in DTYPES:
                    offered[name] = Column(dtype, array.shape)


def info_schema(spec: EnvSpec) -> Schema:
    """The columns of the listed entries in rows."""
    return {PREFIX + name: column for name, column in spec.info.items()}


class InfoReader:
    """Reads the listed entries of a step's `info`."""

    def __init__(self, columns: Schema) -> None:
        self._entries = [
            (name, np.dtype(c.dtype), c.shape, _missing_value(c)) for name, c in columns.items()
        ]

    def read(self, info: Any) -> list[Array]:
        """The values of all columns, in their order."""
        require_mapping(info)
        return [self._value(info, *entry) for entry in self._entries]

    def _value(
        self, info: Any, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], missing: Any
    ) -> Array:
        value = _lookup(info, name)
        if value is None:
            if missing is None:
                raise InvalidOutputError(
                    0,
                    f"info has no '{name}', and an integer cannot say that it is missing; list it as "
                    "float32, which is NaN then",
                )
            return np.full(shape, missing, dtype)
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.asarray(None)
        fits = array.shape == shape and array.dtype.kind in NUMERIC_KINDS
        if fits and np.can_cast(array.dtype, dtype, "same_kind"):
            with np.errstate(over="ignore"):
                return array.astype(dtype)
        if fits and array.dtype.kind in "iub" and np.array_equal(array.astype(dtype), array):
            return array.astype(dtype)
        listed = Column(str(dtype), shape)
        hint = (
            f"list it as {Column('float32', shape)}" if fits else "list what has one type and shape"
        )
        raise InvalidOutputError(
            0, f"info: {name} is {reprlib.repr(value)}; it is listed as {listed}; {hint}"
        )


def require_mapping(info: Any) -> None:
    """Refuse what a step returned in place of a mapping."""
    if type(info) is not dict and not isinstance(info, Mapping):
        raise InvalidOutputError(
            0, f"info is {reprlib.repr(info)}; expected a mapping, such as {{}}"
        )


def _lookup(info: Any, name: str) -> Any:
    """The entry of this name; `a/b` may also be the entry b of the entry a. None if there is none."""
    if name in info:
        return info[name]
    for key in name.split("/"):
        if not isinstance(info, Mapping) or key not in info:
            return None
        info = info[key]
    return info


def _missing_value(column: Column) -> Any:
    return {"b": False, "f": np.nan}.get(np.dtype(column.dtype).kind)


def zero_info(columns: Schema, rows: int) -> dict[str, Array]:
    """Arrays (rows, …) for these columns."""
    return {name: np.zeros((rows, *c.shape), c.dtype) for name, c in columns.items()}


def recording_step(
    step: Callable[[Any], Any], reader: InfoReader, write: Callable[[list[Array]], None]
) -> Callable[[Any], Any]:
    """A step that passes the listed entries of `info` to `write`."""

    def recorded(action: Any) -> Any:
        obs, reward, terminated, truncated, info = step(action)
        write(reader.read(info))
        return obs, reward, terminated, truncated, info

    return recorded


def pool_info(info: Mapping[str, Any], columns: Schema, count: int) -> dict[str, Array]:
    """The columns of a pool's `info`: arrays over all envs; where a mask `_name` is false, an entry is missing."""
    found = {}
    for name, column in columns.items():
        missing = _missing_value(column)
        values = _lookup(info, name)
        has = np.zeros(count, np.bool_) if values is None else _lookup(info, f"_{name}")
        has = np.ones(count, np.bool_) if has is None else np.asarray(has)
        if missing is None and not has.all():
            raise ValueError(
                f"the pool's info lacks '{name}' of some envs, and an integer cannot say so; list it as float32"
            )
        array = np.full((count, *column.shape), 0 if missing is None else missing, column.dtype)
        if has.any():
            array[has] = np.asarray(values)[has]
        found[name] = array
    return found
