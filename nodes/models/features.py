"""Features: the numbers that dense layers take, computed from observations in numpy.

Discrete values are one-hot encoded, bytes (mostly of images) are divided by 255, everything is flattened,
and leaves are concatenated in their order. The action mask is not a feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.observations import ObsColumns, leaf_columns

ACTION_MASK = "action_mask"  # the leaf that marks the allowed actions
BYTE_SCALE = np.float32(1 / 255)
MAX_COLOURS = 4  # the last axis of an image is its channels if it is not larger than this
MOMENTS = ("count", "mean", "squares")  # the running moments that normalisation needs
FEATURE_LIMIT = np.float32(10)  # normalised features are clipped to +- this


Layout = Literal["auto", "first", "last"]  # where the channels of an image are


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


def looks_like_image(column: Column) -> bool:
    """Whether the column holds the brightness of pixels: bytes in two to four axes."""
    return column.dtype == "uint8" and column.n is None and 2 <= len(column.shape) <= 4


def image_shapes(obs: ObsColumns, layout: Layout) -> dict[str, tuple[int, int, int]]:
    """The channels, height and width of each leaf that convolutions can take, with stacked frames as channels."""
    return {
        leaf: _image_shape(column.shape, layout)
        for leaf, column in feature_leaves(obs).items()
        if 2 <= len(column.shape) <= 4
    }


def _image_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, int, int]:
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    frames = shape[0] if len(shape) == 4 else 1
    image = shape[-3:]
    if channels_last(image, layout):
        return frames * image[2], image[0], image[1]
    return frames * image[0], image[1], image[2]


def channels_last(image: tuple[int, ...], layout: Layout) -> bool:
    """Whether the last of an image's three axes is the channels."""
    return layout == "last" or (layout == "auto" and image[-1] <= MAX_COLOURS)
