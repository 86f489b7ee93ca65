"""Plain and nested observations, between an env and a batch, and within a batch.

Plain observations are an array (B, …). Nested ones are a structured array (B,) whose fields are the
leaves of the space, so they are indexed, copied and sent like any other array: `obs["camera"]` is
(B, 84, 84, 4). In a batch each leaf is a column: `obs/camera`, `next_obs/camera`.
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
    """The leaves of a nested space by name, which is the path of keys and tuple indices, joined by `/`."""

    columns: Mapping[str, Column]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the structured array; it is packed, so that arrays can be sent."""
        return np.dtype([(name, c.dtype, c.shape) for name, c in self.columns.items()])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row of the structured array, which is a single element."""
        return ()

    def empty(self, *rows: int) -> Array:
        """An uninitialised array with the given leading dimensions."""
        return np.empty(rows, self.dtype)

    def __str__(self) -> str:
        return "{" + ", ".join(f"{name}: {column}" for name, column in self.columns.items()) + "}"


ObsColumns = Column | NestedColumns


def leaf_columns(obs: ObsColumns) -> Mapping[str, Column]:
    """The columns by leaf; plain observations have the single leaf ''."""
    return obs.columns if isinstance(obs, NestedColumns) else {"": obs}


def columns_under(name: str, obs: ObsColumns) -> dict[str, Column]:
    """The batch columns of observations called `name`: `obs`, or `obs/camera` and `obs/state`."""
    return {_joined(name, leaf): column for leaf, column in leaf_columns(obs).items()}


def obs_columns_in(schema: Schema, name: str) -> ObsColumns | None:
    """The observations called `name` in a batch with this schema; None if it has no such columns."""
    if name in schema:
        return schema[name]
    prefix = name + SEPARATOR
    found = {k.removeprefix(prefix): c for k, c in schema.items() if k.startswith(prefix)}
    return NestedColumns(found) if found else None


def flatten_columns(columns: Mapping[str, Array]) -> dict[str, Array]:
    """The columns of a batch; each field of a structured array becomes a column."""
    found: dict[str, Array] = {}
    for name, array in columns.items():
        if array.dtype.names is None:
            found[name] = array
        else:
            for leaf in array.dtype.names:
                found[_joined(name, leaf)] = np.ascontiguousarray(array[leaf])
    return found


def select_rows(batch: Batch, name: str, rows: Any = slice(None)) -> Array | dict[str, Array]:
    """Some rows of the observations called `name`: an array, or arrays by leaf."""
    if name in batch:
        return batch[name][rows]
    prefix = name + SEPARATOR
    found = {k.removeprefix(prefix): batch[k][rows] for k in batch if k.startswith(prefix)}
    return found or batch[name][rows]  # the second raises the batch's error


def leaf_value(value: Any, leaf: str) -> Any:
    """The leaf of a nested value that an env returned, as containers or as a structured scalar."""
    if isinstance(value, np.void):
        return value[leaf]
    for step in leaf.split(SEPARATOR) if leaf else ():
        value = value[step] if isinstance(value, Mapping) else _item(value, int(step))
    return value


def _item(value: Any, index: int) -> Any:
    if not isinstance(value, Sequence):
        raise TypeError(f"found a {type(value).__name__} where the space has a tuple")
    return value[index]


def _joined(name: str, leaf: str) -> str:
    return name + SEPARATOR + leaf if leaf else name
