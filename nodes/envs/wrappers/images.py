"""Wrappers for images: gray and resized.

Images shrink by area averaging in numpy. It sums in a fixed order, so results have the same bits on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.nodes.envs.wrappers.spaces import (
    LEAF_HELP,
    ObsFunction,
    box_of_shape,
    find_image_box,
    transform_observation,
)
from flowrl.nodes.envs.wrappers.wrapper import Wrapper

LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R BT.601


class Gray(Wrapper):
    """Colour images (H, W, 3) become gray ones (H, W); images that are gray already stay."""

    class Config(Wrapper.Config):
        leaf: str | None = param(None, LEAF_HELP)

    def wrap(self, env: Any) -> Any:
        leaf = self.config.leaf
        box = find_image_box(env, leaf, "gray")
        if len(box.shape) == 2:
            return env
        return transform_observation(env, leaf, box_of_shape(box, box.shape[:2]), to_gray)


class Resize(Wrapper):
    """Images (H, W) or (H, W, C) become smaller: each pixel is the mean of the area that it covers."""

    class Config(Wrapper.Config):
        height: int = param(84, "rows of pixels", ge=1)
        width: int = param(84, "columns of pixels", ge=1)
        leaf: str | None = param(None, LEAF_HELP)

    def wrap(self, env: Any) -> Any:
        size, leaf = (self.config.height, self.config.width), self.config.leaf
        box = find_image_box(env, leaf, "resize")
        resize = make_resizer((box.shape[0], box.shape[1]), size)
        return transform_observation(env, leaf, box_of_shape(box, (*size, *box.shape[2:])), resize)


def to_gray(image: Array) -> Array:
    """The brightness of each pixel: (H, W, C) to (H, W)."""
    if image.shape[2] != 3:
        return image[..., 0]
    mixed = image[..., 0] * LUMA[0] + image[..., 1] * LUMA[1] + image[..., 2] * LUMA[2]
    return (np.rint(mixed) if image.dtype.kind in "iu" else mixed).astype(image.dtype)


def make_resizer(old: tuple[int, int], new: tuple[int, int]) -> ObsFunction:
    """Make a function from images (H, W) or (H, W, C) of the old size to the new one, in their own dtype."""
    rows, columns = _area_shares(old[0], new[0]), _area_shares(old[1], new[1])

    def resize(image: Array) -> Array:
        tall = _weighted_sum(image, *rows)
        wide = _weighted_sum(tall.swapaxes(0, 1), *columns).swapaxes(0, 1)
        whole = image.dtype.kind in "iu"
        return np.ascontiguousarray(np.rint(wide) if whole else wide, image.dtype)

    return resize


def _area_shares(old: int, new: int) -> tuple[Array, Array]:
    """Indices of the old pixels that each new one covers, and the share of each in its area: (new, K) both."""
    edges = np.linspace(0, old, new + 1)
    first = np.floor(edges[:-1]).astype(np.int64)
    most = int(np.ceil(old / new)) + 1
    index = first[:, None] + np.arange(most)
    low, high = np.maximum(index, edges[:-1, None]), np.minimum(index + 1, edges[1:, None])
    share = np.maximum(high - low, 0) * (new / old)
    return np.minimum(index, old - 1), share.astype(np.float32)


def _weighted_sum(image: Array, index: Array, share: Array) -> Array:
    """New rows, each a weighted sum of K old ones."""
    ones = (1,) * (image.ndim - 1)
    total = image[index[:, 0]] * share[:, 0].reshape(-1, *ones)
    for k in range(1, index.shape[1]):
        total += image[index[:, k]] * share[:, k].reshape(-1, *ones)
    return total
