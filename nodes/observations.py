"""Observations of one column, or of several: what they are between an env and a batch, and within one.

One column is an array (B, …). The leaves of a nested space are the fields of one structured array
(B,), which is indexed, copied, sent and shared as every array is: `obs["camera"]` is (B, 84, 84, 4).
In a batch each leaf is a column of its own: `obs/camera`, `next_obs/camera`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema

SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class NestedColumns:
    """The leaves of a nested space, by name: keys and places in tuples, joined by `/`."""

    columns: Mapping[str, Column]

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the structured array: packed, so that it can be sent."""
        return np.dtype([(name, c.dtype, c.shape) for name, c in self.columns.items()])

    @property
    def shape(self) -> tuple[int, ...]:
        """That of one row of the structured array: it is a single element."""
        return ()

    def empty(self, *rows: int) -> Array:
        """An uninitialised array with the given leading dimensions."""
        return np.empty(rows, self.dtype)

    def __str__(self) -> str:
        return "{" + ", ".join(f"{name}: {column}" for name, column in self.columns.items()) + "}"


ObsColumns = Column | NestedColumns


def leaf_columns(observed: ObsColumns) -> Mapping[str, Column]:
    """The columns by name; that of an observation of one column is the empty one."""
    return observed.columns if isinstance(observed, NestedColumns) else {"": observed}


def columns_under(name: str, observed: ObsColumns) -> dict[str, Column]:
    """The columns of a batch that hold it: `obs`, or `obs/camera` and `obs/state`."""
    return {_joined(name, leaf): column for leaf, column in leaf_columns(observed).items()}


def obs_columns_in(schema: Schema, name: str) -> ObsColumns | None:
    """What the columns of a batch hold under this name, if they hold it."""
    if name in schema:
        return schema[name]
    prefix = name + SEPARATOR
    found = {k.removeprefix(prefix): c for k, c in schema.items() if k.startswith(prefix)}
    return NestedColumns(found) if found else None


def flatten_columns(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Columns for a batch: the fields of structured arrays become columns of their own."""
    found: dict[str, Array] = {}
    for name, array in columns.items():
        if array.dtype.names is None:
            found[name] = array
        else:
            for leaf in array.dtype.names:
                found[_joined(name, leaf)] = np.ascontiguousarray(array[leaf])
    return found


def select_rows(batch: Batch, name: str, rows: Any = slice(None)) -> Array | dict[str, Array]:
    """Some rows of the observation under this name: an array, or the leaves by name."""
    if name in batch:
        return batch[name][rows]
    prefix = name + SEPARATOR
    found = {k.removeprefix(prefix): batch[k][rows] for k in batch if k.startswith(prefix)}
    return found or batch[name][rows]  # the batch says what it lacks


def leaf_value(value: Any, leaf: str) -> Any:
    """The leaf of one nested value, as an env gives it: in containers, or in one record."""
    if isinstance(value, np.void):
        return value[leaf]
    for step in leaf.split(SEPARATOR) if leaf else ():
        value = value[step] if isinstance(value, Mapping) else _at(value, int(step))
    return value


def _at(value: Any, place: int) -> Any:
    if not isinstance(value, Sequence):
        raise TypeError(f"a {type(value).__name__} where a tuple was promised")
    return value[place]


def _joined(name: str, leaf: str) -> str:
    return name + SEPARATOR + leaf if leaf else name
