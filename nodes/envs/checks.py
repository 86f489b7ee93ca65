"""Arrays from what envs gave, checked against what their spaces promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.batch import Array, Column


class Bad(ValueError):
    """The `k`-th of the values is not what was promised."""

    def __init__(self, k: int, what: str) -> None:
        self.k = k
        super().__init__(what)


def observations(seen: Sequence[Any], column: Column, dtype: np.dtype[Any]) -> Array:
    """Observations as one new array (B, …) of the column's dtype."""
    try:
        obs = np.array(seen)
    except ValueError:  # their shapes differ
        obs = _cast(seen, column, dtype)
    if obs.dtype != dtype or obs.shape[1:] != column.shape:
        obs = _cast(seen, column, dtype)
    if dtype.kind == "f" and not _finite(obs):
        k = next(k for k, one in enumerate(obs) if not np.isfinite(one).all())
        raise Bad(k, f"the observation is not finite: {obs[k]}")
    return obs


def rewards(given: Sequence[Any]) -> Array:
    """Rewards as one new array (B,) float64."""
    try:
        array = np.array(given, np.float64)
        if array.ndim == 1 and _finite(array):
            return array
    except (TypeError, ValueError):
        pass  # said below, with the place
    for k, reward in enumerate(given):
        if not (np.ndim(reward) == 0 and np.isreal(reward) and np.isfinite(float(reward))):
            raise Bad(k, f"the reward is {reward!r}; it must be a finite number")
    raise Bad(0, f"the rewards are {list(given)!r}; they must be finite numbers")


def _finite(values: Array) -> bool:
    # The sum of squares is not finite if a value is not, and takes a quarter of the time of
    # `isfinite`; where it overflows for large values, `isfinite` decides.
    flat = values.reshape(-1)
    return math.isfinite(flat.dot(flat)) or bool(np.isfinite(flat).all())


def _cast(seen: Sequence[Any], column: Column, dtype: np.dtype[Any]) -> Array:
    for k, one in enumerate(map(np.asarray, seen)):
        if one.shape != column.shape or not np.can_cast(one.dtype, dtype, "same_kind"):
            got = Column(str(one.dtype), one.shape)
            raise Bad(k, f"the observation is {got}; its space says {column}")
    with np.errstate(over="ignore"):  # what becomes infinite is found right after
        return np.array(seen).astype(dtype)
