"""Checks for NaN and infinite numbers where they arise: in the outputs of nodes, and in the weights of learners."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from flowrl.core.batch import Array, Batch
from flowrl.core.errors import InvalidResultError

SMALL_SIZE = 500  # up to which numpy keeps the GIL in sums


def check_finite_columns(port: str, batch: Batch, names: Iterable[str]) -> None:
    """Raise an error that names the first of these columns of floats that is not finite, and its first such row."""
    columns = batch.columns
    floats = [name for name in names if name in columns and columns[name].dtype.kind == "f"]
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = [name for name in floats if not math.isfinite(_indicator(columns[name]))]
    for name in suspects:
        if not np.isfinite(columns[name]).all():
            raise InvalidResultError(_what_is_not_finite(port, name, columns[name]))


def check_no_nan(weights: Mapping[str, Array], version: int, last_version: int | None) -> None:
    """Raise an error if a version of a learner's weights holds NaN, from which it cannot recover.

    `last_version` is the version that was checked before, if any.
    """
    diverged, large = [], []
    for name, array in weights.items():
        if array.dtype.kind != "f":
            continue
        if array.size > SMALL_SIZE:
            large.append(name)
        elif array.size and math.isnan(np.minimum.reduce(array, axis=None)):
            diverged.append(name)
    if large:
        with np.errstate(over="ignore", invalid="ignore"):
            suspects = [name for name in large if math.isnan(_indicator(weights[name]))]
        diverged += [name for name in suspects if np.isnan(weights[name]).any()]
    if diverged:
        diverged.sort(key=[*weights].index)
        since = "" if last_version is None else f", and version {last_version} held none"
        raise InvalidResultError(
            f"learning has diverged: in version {version}, {len(diverged)} of {len(weights)} weights hold nan (the "
            f"first: '{diverged[0]}'){since}; take a lower `lr`, or check for rewards or observations that are too "
            "large"
        )


def _indicator(array: Array) -> float:
    """Return a number that is NaN if the array holds NaN, and not finite if it holds infinity.

    It may also be so for finite numbers, if they are large. The sum of squares takes a third of the time of
    `np.isfinite(array).all()`; but it lets another thread continue, which costs more than the sum of a small array.
    """
    flat = array.ravel("K")
    return float(flat.dot(flat) if flat.size > SMALL_SIZE else np.add.reduce(flat))


def _what_is_not_finite(port: str, name: str, column: Array) -> str:
    rows = np.flatnonzero(~np.isfinite(column.reshape(len(column), -1)).all(axis=1))
    row = column[rows[0]].ravel()
    value = row[~np.isfinite(row)][0]
    counted = f"{len(rows)} of {len(column)} rows" if len(column) > 1 else "its row"
    return (
        f"output '{port}': the column '{name}' holds {value} in {counted} (the first: row {rows[0]}), and a learner "
        "learns from this column; give finite numbers only, or leave such rows out"
    )
