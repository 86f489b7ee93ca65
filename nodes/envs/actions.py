"""Checks the actions that env managers are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column


def convert_actions(actions: Any, count: int, column: Column) -> Array:
    """Convert the actions of so many rows to the dtype of their column. Refuse values that this would change."""
    array, dtype = np.asarray(actions), np.dtype(column.dtype)
    shape = (count, *column.shape)
    if len(array) != count:
        raise ValueError(f"env manager: {len(array)} actions for {count} envs; give one for each")
    if array.dtype == dtype and array.shape == shape:
        return array
    if array.dtype.kind not in "biuf":
        raise ValueError(f"env manager: an action is {array.flat[0]!r}; expected {column}")
    converted = array.astype(dtype)
    # Less precision is not a change.
    both_float = array.dtype.kind == "f" and converted.dtype.kind == "f"
    if array.shape != shape or not (both_float or np.array_equal(converted, array)):
        given = f"{array.dtype}{list(array.shape[1:])}"
        raise ValueError(f"env manager: the actions are {given}; expected {column}")
    return converted
