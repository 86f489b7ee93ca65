"""Stratified draws, and the weights that correct for drawing some rows more often."""

from __future__ import annotations

import functools

import numpy as np

from flowrl.core.batch import Array

GOLDEN = (5**0.5 - 1) / 2


def masses(points: Array, rows: int, total: float) -> Array:
    """Points of [0, 1) to those of [0, total): in each batch of `rows` one in each equal part."""
    found: Array = order(rows) + points.reshape(-1, rows) if rows else points
    return (found * (total / max(rows, 1))).reshape(-1)


@functools.lru_cache(maxsize=16)
def order(rows: int) -> Array:
    """The order of the parts within a batch: any slice of a batch has rows of everywhere.

    In their own order a batch would be sorted by place, and so by age.
    """
    parts = np.argsort((np.arange(rows) * GOLDEN) % 1.0, kind="stable").astype(np.float64)
    parts.flags.writeable = False
    return parts


def importance(chance: Array, held: int, beta: float, rows: int) -> Array:
    """w_i = (N P(i))^-beta / max_j w_j, the maximum over the batch (section 3.4), (n,) float32."""
    if not rows:
        return np.empty(0, np.float32)
    weights: Array = ((chance * held) ** -beta).reshape(-1, rows)
    weights /= weights.max(1, keepdims=True)
    return weights.reshape(-1).astype(np.float32)
