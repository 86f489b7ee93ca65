"""A node's whole state as data: arrays by name, and everything else as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.json_text import parse_object

ARRAY_KEY = "$array"  # in the JSON, an array is an object with this key and the array's name


class SavedState:
    """The result of a node's `state_dict`, as data that files and channels can hold.

    It is split into arrays and JSON when one of them is needed, because most saved states are never written.
    """

    __slots__ = ("_parts", "_state")

    def __init__(self, arrays: Mapping[str, Array], text: str) -> None:
        self._parts: tuple[Mapping[str, Array], str] | None = (arrays, text)
        self._state: Mapping[str, Any] = {}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> SavedState:
        """Keep a state, whose arrays are never written to again."""
        saved = cls({}, "")
        saved._parts, saved._state = None, state
        return saved

    @property
    def arrays(self) -> Mapping[str, Array]:
        return self.parts()[0]

    @property
    def text(self) -> str:
        return self.parts()[1]

    def parts(self) -> tuple[Mapping[str, Array], str]:
        """The arrays by name, and the rest as JSON; raise TypeError if the state has anything else in it."""
        if self._parts is None:
            arrays: dict[str, Array] = {}
            tree = _without_arrays("state", self._state, arrays)
            self._parts, self._state = (arrays, json.dumps(tree)), {}
        return self._parts

    def state_dict(self) -> dict[str, Any]:
        """The state that was saved. Tuples have become lists; raise ValueError if data is missing."""
        arrays, text = self.parts()
        found: dict[str, Any] = _with_arrays(parse_object(text), arrays)
        return found


def _without_arrays(path: str, value: Any, arrays: dict[str, Array]) -> Any:
    """The value with arrays replaced by their names, which are added to `arrays`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        name = path.partition("/")[2]
        if name in arrays:
            raise ValueError(f"{path}: two arrays of the state have this path; rename one of them")
        arrays[name] = value
        return {ARRAY_KEY: name}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: _without_arrays(f"{path}/{k}", v, arrays) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_arrays(f"{path}/{i}", v, arrays) for i, v in enumerate(value)]
    raise TypeError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold; use numbers, texts, arrays of "
        "numbers, and lists and mappings of them"
    )


def _with_arrays(tree: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(tree, list):
        return [_with_arrays(one, arrays) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if ARRAY_KEY not in tree:
        return {k: _with_arrays(v, arrays) for k, v in tree.items()}
    name = tree[ARRAY_KEY]
    if not isinstance(name, str) or name not in arrays:
        raise ValueError(f"it lacks the array {name!r}")
    return arrays[name]
