"""Gray and smaller images, at work."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.envs.wrapped.area import make_resizer
from flowrl.nodes.envs.wrapped.spaces import ObservationTransformEnv, box_of_shape, find_image_box

LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


def make_gray(env: Any, leaf: str | None) -> Any:
    """The env with gray images; those that are gray already stay."""
    box = find_image_box(env, leaf, "gray")
    return (
        env
        if len(box.shape) == 2
        else ObservationTransformEnv(env, leaf, box_of_shape(box, box.shape[:2]), gray)
    )


def make_resized(env: Any, size: tuple[int, int], leaf: str | None) -> Any:
    """The env with images of this size."""
    box = find_image_box(env, leaf, "resize")
    change = make_resizer((box.shape[0], box.shape[1]), size)
    return ObservationTransformEnv(env, leaf, box_of_shape(box, (*size, *box.shape[2:])), change)


def gray(image: Array) -> Array:
    """The brightness of each pixel: (H, W, C) to (H, W)."""
    if image.shape[2] != 3:
        return image[..., 0]
    mixed = image[..., 0] * LUMA[0] + image[..., 1] * LUMA[1] + image[..., 2] * LUMA[2]
    return rounded(mixed, image.dtype)


def rounded(values: Array, dtype: np.dtype[Any]) -> Array:
    """Values in an image's own dtype; whole numbers are rounded, not cut."""
    return (np.rint(values) if dtype.kind in "iu" else values).astype(dtype)
