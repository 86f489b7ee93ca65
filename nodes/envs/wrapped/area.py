"""Shrinking images by area averaging, in numpy: sums in a fixed order, so the same bits everywhere."""

from __future__ import annotations

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.envs.wrapped.spaces import Change


def shares(old: int, new: int) -> tuple[Array, Array]:
    """Which old pixels each new one covers, and what share of it each of them is: (new, K) both."""
    edges = np.linspace(0, old, new + 1)
    first = np.floor(edges[:-1]).astype(np.int64)
    most = int(np.ceil(old / new)) + 1
    index = first[:, None] + np.arange(most)
    low, high = np.maximum(index, edges[:-1, None]), np.minimum(index + 1, edges[1:, None])
    share = np.maximum(high - low, 0) * (new / old)
    return np.minimum(index, old - 1), share.astype(np.float32)


def make_resizer(old: tuple[int, int], new: tuple[int, int]) -> Change:
    """Images (H, W) or (H, W, C) of the old size to the new one, in their own dtype."""
    rows, columns = shares(old[0], new[0]), shares(old[1], new[1])

    def shrink(image: Array) -> Array:
        tall = _mixed(image, *rows)
        wide = _mixed(tall.swapaxes(0, 1), *columns).swapaxes(0, 1)
        whole = image.dtype.kind in "iu"
        return np.ascontiguousarray(np.rint(wide) if whole else wide, image.dtype)

    return shrink


def _mixed(image: Array, index: Array, share: Array) -> Array:
    """New rows, each a weighted sum of K old ones."""
    ones = (1,) * (image.ndim - 1)
    total = image[index[:, 0]] * share[:, 0].reshape(-1, *ones)
    for k in range(1, index.shape[1]):
        total += image[index[:, k]] * share[:, k].reshape(-1, *ones)
    return total
