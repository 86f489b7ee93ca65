"""Features: the numbers that dense layers take, computed from observations in numpy.

Discrete values are one-hot encoded, bytes (mostly of images) are divided by 255, everything is flattened,
and leaves are concatenated in their order. The action mask is not a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.observations import ObsColumns, leaf_columns

ACTION_MASK = "action_mask"  # the leaf that marks the allowed actions
BYTE_SCALE = np.float32(1 / 255)
MOMENTS = ("count", "mean", "squares")  # the running moments that normalisation needs
FEATURE_LIMIT = np.float32(10)  # normalised features are clipped to +- this


def feature_leaves(obs: ObsColumns) -> dict[str, Column]:
    """The columns that become features, by leaf; plain observations have the leaf ''."""
    return {leaf: column for leaf, column in leaf_columns(obs).items() if leaf != ACTION_MASK}


def is_discrete(column: Column) -> bool:
    """Whether the column has one of `n` values, which is one-hot encoded."""
    return column.n is not None and not column.shape


def feature_width(column: Column) -> int:
    return int(column.n or 0) if is_discrete(column) else int(np.prod(column.shape, dtype=np.int64))


def measured_features(columns: Mapping[str, Column]) -> Array:
    """Whether each feature is real-valued; only these are normalised."""
    flags = [np.full(feature_width(c), np.dtype(c.dtype).kind == "f") for c in columns.values()]
    return np.concatenate(flags) if flags else np.zeros(0, np.bool_)


def feature_encoder(obs: ObsColumns, scale_bytes: bool) -> Callable[[Array], Array]:
    """Return a function from observations (B, …) to features (B, F) float32."""
    encoders = {leaf: _column_encoder(c, scale_bytes) for leaf, c in feature_leaves(obs).items()}
    if "" in encoders:
        return encoders[""]
    return lambda obs: np.concatenate([f(obs[leaf]) for leaf, f in encoders.items()], 1)


def _column_encoder(column: Column, scale_bytes: bool) -> Callable[[Array], Array]:
    if is_discrete(column):
        one_hot = np.eye(int(column.n or 0), dtype=np.float32)
        return lambda obs: one_hot[obs]
    if scale_bytes and column.dtype == "uint8":
        return lambda obs: obs.reshape(len(obs), -1) * BYTE_SCALE
    return lambda obs: obs.reshape(len(obs), -1).astype(np.float32, copy=False)
