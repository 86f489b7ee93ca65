"""A node's whole state as data: arrays by name, and everything else as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from flowrl.core.array_pieces import ArrayPieces, LiveArray
from flowrl.core.batch import Array, Batch
from flowrl.core.json_text import parse_object

# In the JSON, values that JSON does not have are objects with one of these keys.
ARRAY_KEY = "$array"  # the array's name
TUPLE_KEY = "$tuple"  # a list
NUMBER_KEY = "$number"  # the dtype and the value of one of numpy's numbers
BATCH_KEY = "$batch"  # the columns of a table
FIELDS_KEY = "$fields"  # the fields of a structured array, such as nested observations
KEYS = (ARRAY_KEY, TUPLE_KEY, NUMBER_KEY, BATCH_KEY, FIELDS_KEY)


class UnsavableStateError(TypeError):
    """A state holds a value that no checkpoint or snapshot can hold."""

    needs_traceback = False


class SavedState:
    """The result of a node's `state_dict`, as data that files and channels can hold.

    It is split into arrays and JSON when one of them is needed, because most saved states are never written.
    """

    __slots__ = ("_live", "_parts", "_state", "pieces")

    def __init__(
        self,
        arrays: Mapping[str, Array],
        text: str,
        pieces: Mapping[str, ArrayPieces] | None = None,
    ) -> None:
        """`pieces` are the arrays that are in pieces, of which some may be missing."""
        self.pieces: Mapping[str, ArrayPieces] = pieces or {}
        self._parts: tuple[Mapping[str, Array], str] | None = (arrays, text)
        self._state: Mapping[str, Any] = {}
        self._live: Mapping[str, LiveArray] = {}

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
        """The arrays by name, and the rest as JSON; raise `UnsavableStateError` if the state has anything else."""
        if self._parts is None:
            arrays: dict[str, Array | LiveArray] = {}
            tree = _without_arrays("state", self._state, arrays)
            self._live = {n: a for n, a in arrays.items() if isinstance(a, LiveArray)}
            copied = {n: a for n, a in arrays.items() if not isinstance(a, LiveArray)}
            self._parts, self._state = (copied, json.dumps(tree)), {}
        return self._parts

    def all_arrays(self) -> Mapping[str, Array | ArrayPieces]:
        """The arrays and the arrays in pieces, by name."""
        return {**self.arrays, **self.pieces}

    def live_arrays(self) -> Mapping[str, LiveArray]:
        """The arrays that are not copied yet, by name."""
        self.parts()
        return self._live

    def with_copies(
        self, copies: Mapping[str, Array], pieces: Mapping[str, ArrayPieces]
    ) -> SavedState:
        """The same state with copies, or pieces, of its live arrays."""
        arrays, text = self.parts()
        return SavedState({**arrays, **copies}, text, pieces)

    def state_dict(self) -> dict[str, Any]:
        """The state that was saved; raise ValueError if data is missing."""
        arrays, text = self.parts()
        whole = {name: pieces.joined() for name, pieces in self.pieces.items()}
        found: dict[str, Any] = _with_arrays(parse_object(text), {**arrays, **whole})
        return found


def check_names(owner: str, names: Collection[str], expected: Collection[str]) -> None:
    """Raise unless a saved state has exactly the expected names."""
    differences = {
        "lacks": set(expected) - set(names),
        "has unknown": set(names) - set(expected),
    }
    wrong = [f"{verb} {sorted(found)}" for verb, found in differences.items() if found]
    if wrong:
        raise ValueError(f"{owner}: the state {' and '.join(wrong)}; is it that of another model?")


def _without_arrays(path: str, value: Any, arrays: dict[str, Array | LiveArray]) -> Any:
    """The value with arrays replaced by their names, which are added to `arrays`."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, LiveArray) or _is_array_of_numbers(value):
        name = path.partition("/")[2]
        if name in arrays:
            raise ValueError(f"{path}: two arrays of the state have this path; rename one of them")
        arrays[name] = value
        return {ARRAY_KEY: name}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {NUMBER_KEY: [value.dtype.str, value.item()]}
    if isinstance(value, Batch):
        return {BATCH_KEY: _without_arrays(path, dict(value.columns), arrays)}
    if isinstance(value, np.ndarray) and value.dtype.names:
        fields = {name: np.ascontiguousarray(value[name]) for name in value.dtype.names}
        return {FIELDS_KEY: [value.ndim, _without_arrays(path, fields, arrays)]}
    if isinstance(value, Mapping) and _has_plain_keys(value):
        return {k: _without_arrays(f"{path}/{k}", v, arrays) for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = [_without_arrays(f"{path}/{i}", v, arrays) for i, v in enumerate(value)]
        return {TUPLE_KEY: items} if isinstance(value, tuple) else items
    raise UnsavableStateError(
        f"{path} is a {type(value).__name__}, which a checkpoint cannot hold; use numbers, texts, arrays of "
        "numbers, and lists and mappings of them, with texts as keys"
    )


def _is_array_of_numbers(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind in "biuf"


def _has_plain_keys(value: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and key not in KEYS for key in value)


def _with_arrays(tree: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(tree, list):
        return [_with_arrays(one, arrays) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if TUPLE_KEY in tree:
        return tuple(_with_arrays(one, arrays) for one in tree[TUPLE_KEY])
    if NUMBER_KEY in tree:
        dtype, value = tree[NUMBER_KEY]
        return np.dtype(dtype).type(value)
    if BATCH_KEY in tree:
        return Batch(_with_arrays(tree[BATCH_KEY], arrays))
    if FIELDS_KEY in tree:
        dims, fields = tree[FIELDS_KEY]
        return _structured(dims, fields, arrays)
    if ARRAY_KEY not in tree:
        return {k: _with_arrays(v, arrays) for k, v in tree.items()}
    name = tree[ARRAY_KEY]
    if not isinstance(name, str) or name not in arrays:
        raise ValueError(f"it lacks the array {name!r}")
    return arrays[name]


def _structured(dims: int, tree: Any, arrays: Mapping[str, Array]) -> Array:
    """The structured array of these fields, whose own shape has so many dimensions."""
    fields = _with_arrays(tree, arrays)
    first = next(iter(fields.values()))
    dtype = [(name, array.dtype, array.shape[dims:]) for name, array in fields.items()]
    found = np.empty(first.shape[:dims], dtype)
    for name, array in fields.items():
        found[name] = array
    return found
