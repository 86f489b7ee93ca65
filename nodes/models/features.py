"""Observations as the numbers that dense layers take: described once, worked in numpy here.

Discrete values become one-hot, bytes (images, mostly) fractions of 255, everything is laid flat, and
leaves follow each other in their order. The mask of allowed actions is not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.observations import ObsColumns, leaf_columns

ACTION_MASK = "action_mask"  # the leaf that says which actions are allowed
BYTE = np.float32(1 / 255)
MOMENTS = ("count", "mean", "squares")  # of the features, if they are normalised
FEATURE_LIMIT = np.float32(10)  # of normalised features, on both sides


def feature_leaves(obs: ObsColumns) -> dict[str, Column]:
    """The columns that features are made of; that of a plain observation is the empty one."""
    return {leaf: column for leaf, column in leaf_columns(obs).items() if leaf != ACTION_MASK}


def is_discrete(column: Column) -> bool:
    """Whether it is one of `n` values, given to dense layers as one-hot."""
    return column.n is not None and not column.shape


def feature_width(column: Column) -> int:
    """How many numbers a column is to dense layers."""
    return int(column.n or 0) if is_discrete(column) else int(np.prod(column.shape, dtype=np.int64))


def measured_features(columns: Mapping[str, Column]) -> Array:
    """Of each feature, whether it is a measured quantity: only these have a scale to be found."""
    found = [np.full(feature_width(c), np.dtype(c.dtype).kind == "f") for c in columns.values()]
    return np.concatenate(found) if found else np.zeros(0, np.bool_)


def feature_encoder(obs: ObsColumns, scale_bytes: bool) -> Callable[[Array], Array]:
    """Turns observations (B, …) into features (B, F) float32."""
    found = {leaf: _of_column(c, scale_bytes) for leaf, c in feature_leaves(obs).items()}
    if "" in found:
        return found[""]
    return lambda obs: np.concatenate([f(obs[leaf]) for leaf, f in found.items()], 1)


def _of_column(column: Column, scale_bytes: bool) -> Callable[[Array], Array]:
    if is_discrete(column):
        one_hot = np.eye(int(column.n or 0), dtype=np.float32)
        return lambda obs: one_hot[obs]
    if scale_bytes and column.dtype == "uint8":
        return lambda obs: obs.reshape(len(obs), -1) * BYTE
    return lambda obs: obs.reshape(len(obs), -1).astype(np.float32, copy=False)
