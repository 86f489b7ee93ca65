"""The state of an object is found in its attributes, so that no class has to list what it must save."""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from flowrl.core.config import Config, Part
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.saved_weights import check_names

FIXED_TYPES = (str, bytes, Part, Config, type, types.FunctionType, types.ModuleType)


def state_of_attributes(owner: Any, without: Collection[str] = ()) -> dict[str, Any]:
    """The state of all attributes that can change: numbers, arrays, generators, and objects with a `state_dict`.

    Attributes that the graph fixes (texts, configs, functions) are left out. Any other attribute is refused, because
    a checkpoint would lack it.
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
        elif isinstance(value, torch.Generator):
            value.set_state(torch.from_numpy(np.array(saved, np.uint8)))
        elif hasattr(value, "load_state_dict"):
            value.load_state_dict(saved)
        elif isinstance(value, np.ndarray):
            setattr(owner, name, np.array(saved))
        else:
            setattr(owner, name, saved if value is None else type(value)(saved))


def _changing(owner: Any, without: Collection[str]) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        if name in without or _is_fixed(value):
            continue
        if not _can_be_saved(value):
            raise TypeError(
                f"{_name(owner)}.{name} is a {type(value).__name__}, which a checkpoint cannot hold; use numbers, "
                "arrays, generators, networks, or objects with `state_dict` and `load_state_dict`"
            )
        yield name, value


def _is_fixed(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_fixed, value))
    return isinstance(value, FIXED_TYPES)


def _can_be_saved(value: Any) -> bool:
    plain = (int, float, np.ndarray, np.number, np.random.Generator, torch.Generator, type(None))
    return isinstance(value, plain) or hasattr(value, "load_state_dict")


def _saved(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().copy()
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.state_dict() if hasattr(value, "state_dict") else value


def _name(owner: Any) -> str:
    return type(owner).__qualname__.split(".")[0].lower()
