"""Checks the rows of a dataset against the spaces of the env: they may be damaged, or of another env."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.output_checks import MAX_REWARD

HINT = "correct the file, or write `env: null` at this node if its rows are not of the graph's env"


def require_valid_rows(path: Path, table: Batch, spaces: Schema) -> None:
    """Raise `UnsoundError` for the first row that no env with these columns gives, or that is not of finite numbers."""
    for name, array in table.columns.items():
        column = spaces.get(name)
        if column is not None and array.shape[1:] != column.shape:
            what = f"'{path}': the column '{name}' is {Column(str(array.dtype), array.shape[1:])}"
            raise UnsoundError(f"{what}; the space of the env is {column}", HINT, "path")
        for valid, expected in _conditions(name, array, column):
            if not valid.all():
                row = int(np.argmin(valid.reshape(len(array), -1).all(axis=1)))
                what = f"'{path}': the column '{name}' has {array[row]!s:.60} in row {row}"
                raise UnsoundError(f"{what}; expected {expected}", HINT, "path")


def _conditions(name: str, array: Array, column: Column | None) -> Iterator[tuple[Array, str]]:
    """Yield which numbers fulfil each condition of a column, and the condition in words."""
    if name == "reward":
        yield np.abs(array) <= MAX_REWARD, "finite numbers, also in single precision"
    elif array.dtype.kind == "f":
        yield np.isfinite(array), "finite numbers"
    if column is None:
        return
    if column.n is not None:
        yield (array >= 0) & (array < column.n), f"0 to {column.n - 1}"
    elif name == "action" and array.dtype.kind in "iu" and column.low is not None:
        low, high = (
            np.broadcast_to(_limits(b, column), column.shape) for b in (column.low, column.high)
        )
        yield (array >= low) & (array <= high), f"{low.min():g} to {high.max():g}"


def _limits(bound: object, column: Column) -> Array:
    """A bound of a column: one number, or one for each number of a row."""
    limits = np.asarray(bound)
    return limits.reshape(column.shape) if limits.size > 1 else limits.reshape(())
