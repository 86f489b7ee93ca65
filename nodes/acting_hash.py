"""Hashes what acting depends on: the steps of a policy, with all values that they hold, and what modes are made of.

Two configs of an algorithm whose hashes are equal act alike, so what differs between them has no effect on whoever
acts. Code that holds a policy, or its config, may read any of its settings, so that all of them count.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from flowrl.core.config import Config, PartSpec
from flowrl.core.written_config import written_params, written_value

PLAIN = (bool, int, float, str, bytes, type(None))
POINTER_BYTES = struct.calcsize("P")


def acting_hash(parts: Iterable[Any]) -> str:
    """A hash of everything that these objects hold; empty if one of them holds what cannot be hashed."""
    try:
        text = repr([_contents(part, ()) for part in parts])
    except UnknownContentsError:
        return ""
    return hashlib.sha256(text.encode()).hexdigest()


class UnknownContentsError(Exception):
    """An object is made by a library that does not say what it holds."""


def _contents(value: Any, outer: tuple[int, ...]) -> Any:
    """What an object holds, as plain data. `outer` are the objects that hold it, by id."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, np.ndarray | np.generic | np.dtype):
        array = np.asarray(value) if not isinstance(value, np.dtype) else np.empty(0, value)
        return str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, Config):
        return written_params(value)
    if isinstance(value, PartSpec):
        return written_value(value)
    if id(value) in outer:
        return "an object that holds it"
    within = (*outer, id(value))
    return [type(value).__qualname__, *(_contents(held, within) for held in _held(value))]


def _held(value: Any) -> Iterator[Any]:
    """Yield what an object holds directly."""
    if isinstance(value, Mapping):
        yield from (each for item in value.items() for each in item)
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, FunctionType):
        cells = [_cell_contents(cell) for cell in value.__closure__ or ()]
        yield from (value.__code__, value.__defaults__, value.__kwdefaults__, *cells, vars(value))
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif not _hides_state(type(value)):
        yield type(value)
        yield from (each for item in _attributes(value).items() for each in item)
    else:
        raise UnknownContentsError(type(value).__qualname__)


def _cell_contents(cell: CellType) -> Any:
    """The value of a variable that a function uses, of the function around it."""
    try:
        return cell.cell_contents
    except ValueError as error:
        raise UnknownContentsError("a variable that is not set yet") from error


class _Plain:
    """A class that is written in Python."""


def _hides_state(cls: type) -> bool:
    """Whether instances hold more than attributes, as those of classes that are written in C: tensors, generators."""
    return cls.__basicsize__ > _Plain.__basicsize__ + len(_slots(cls)) * POINTER_BYTES


def _slots(cls: type) -> list[str]:
    """The names of the attributes that have slots."""
    found: list[str] = []
    for base in cls.__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    return found


def _attributes(value: Any) -> dict[str, Any]:
    names = _slots(type(value))
    return {
        **{name: getattr(value, name) for name in names if hasattr(value, name)},
        **getattr(value, "__dict__", {}),
    }


def _code(code: CodeType) -> Any:
    """What a function does."""
    consts = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return code.co_filename, code.co_firstlineno, code.co_code, code.co_names, consts
