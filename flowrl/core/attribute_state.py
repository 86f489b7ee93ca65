"""The state of an object is found in its attributes, so that no class has to list what it must save."""

from __future__ import annotations

import random
import sys
import types
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Batch
from flowrl.core.config import Config, Part
from flowrl.core.saved_state import UnsavableStateError, check_names

FIXED_TYPES = (
    Part,
    Config,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.ModuleType,
    np.ufunc,
)
PLAIN_TYPES = (type(None), bool, int, float, str, np.number, np.bool_, Batch)
GENERATORS = (np.random.Generator, random.Random)
CONTAINERS = (list, tuple, dict, deque)


def state_of_attributes(owner: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """The state of all attributes that can change: numbers, texts, arrays, generators, lists and mappings of them, and
    objects with a `state_dict`.

    Attributes that the graph fixes (parts, configs, functions, classes) are left out. Any other attribute is refused,
    because a checkpoint would lack it.
    """
    return {name: _saved(value) for name, value in _changing(owner, without)}


def load_attributes(owner: Any, state: Mapping[str, Any], without: Collection[str] = ()) -> None:
    """Continue from a state that `state_of_attributes` returned; a missing or unknown name is an error."""
    known = dict(_changing(owner, without))
    check_names(_name(owner), state, known)
    for name, value in known.items():
        saved = state[name]
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = saved
        elif isinstance(value, random.Random):
            value.setstate(saved)
        elif _is_torch(value, "Generator"):
            value.set_state(_torch().from_numpy(np.array(saved, np.uint8)))
        elif _is_torch(value, "Tensor"):
            setattr(owner, name, _torch().from_numpy(np.array(saved)).to(value.device))
        elif hasattr(value, "load_state_dict"):
            value.load_state_dict(saved)
        elif isinstance(value, deque):
            setattr(owner, name, deque(_copied(saved), value.maxlen))
        else:
            setattr(owner, name, _copied(saved))


def names_of_generators(owner: Any) -> list[str]:
    """Return the names of attributes that are random generators."""
    attributes = getattr(owner, "__dict__", {})
    return [name for name, value in attributes.items() if _is_generator(value)]


def _is_generator(value: Any) -> bool:
    return isinstance(value, GENERATORS) or _is_torch(value, "Generator")


def attribute_kinds(owner: Any, without: Collection[str] = ()) -> dict[str, str]:
    """How each attribute is saved and loaded: as data, or by itself, as objects are; or not at all, if it is fixed."""
    return {name: _kind(value) for name, value in vars(owner).items() if name not in without}


def refuse_other_attributes(
    owner: Any,
    kinds: Mapping[str, str],
    without: Collection[str] = (),
    made_in: str = "setup",
) -> None:
    """Refuse attributes that a new owner would not have, or could not load, because they have other kinds there.

    `made_in` is the method after which the attributes had these kinds.
    """
    found = attribute_kinds(owner, without)
    for name in found.keys() | kinds.keys():
        now, then = found.get(name, "missing"), kinds.get(name, "missing")
        if now != then and {now, then} != {"data", "none"}:
            raise UnsavableStateError(
                f"{_name(owner)}.{name} is {_kind_text(now)}, and was {_kind_text(then)} after `{made_in}`, so a new "
                f"one could not load it; make it in `{made_in}`"
            )


def _kind(value: Any) -> str:
    if value is None:
        return "none"
    if _is_fixed(value):
        return "fixed"
    if _is_plain(value):
        return "data"
    return "state_dict" if hasattr(value, "load_state_dict") else type(value).__name__


def _kind_text(kind: str) -> str:
    known = {
        "none": "None",
        "missing": "not there",
        "data": "data",
        "fixed": "a function or a class",
        "state_dict": "an object with a `state_dict`",
    }
    return known.get(kind, f"a {kind}")


def _changing(owner: Any, without: Collection[str]) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        if name in without or _is_fixed(value):
            continue
        if not _can_be_saved(value):
            raise UnsavableStateError(
                f"{_name(owner)}.{name} is a {type(value).__name__}, which a checkpoint cannot hold; use numbers, "
                "arrays, generators, lists and mappings of them, networks, or objects with `state_dict` and "
                "`load_state_dict`"
            )
        yield name, value


def _is_fixed(value: Any) -> bool:
    """Whether a value is set by the graph and by code: a function, for example, or a tuple with one in it."""
    if isinstance(value, tuple | frozenset):
        return any(map(_is_fixed, value)) and all(_is_fixed(v) or _is_plain(v) for v in value)
    return isinstance(value, FIXED_TYPES)


def _can_be_saved(value: Any) -> bool:
    if _is_plain(value) or _is_generator(value) or hasattr(value, "load_state_dict"):
        return True
    return _is_torch(value, "Tensor") and not value.requires_grad


def _is_plain(value: Any) -> bool:
    """Whether a value is data, such as a list of numbers."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, CONTAINERS):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf" or bool(value.dtype.names)
    return isinstance(value, PLAIN_TYPES)


def _saved(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    if _is_torch(value, "Generator"):
        return value.get_state().numpy().copy()
    if _is_torch(value, "Tensor"):
        return value.detach().cpu().numpy().copy()
    if hasattr(value, "state_dict"):
        return value.state_dict()
    return _copied(value)


def _copied(value: Any) -> Any:
    """A deep copy of plain data. A deque becomes a list."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | deque):
        return [_copied(item) for item in value]
    return tuple(map(_copied, value)) if isinstance(value, tuple) else value


def _is_torch(value: Any, kind: str) -> bool:
    """Whether a value is of a class of torch, which is not imported for the question."""
    return "torch" in sys.modules and isinstance(value, getattr(_torch(), kind))


def _torch() -> Any:
    return sys.modules["torch"]


def _name(owner: Any) -> str:
    return type(owner).__qualname__.split(".")[0].lower()
