"""Priorities that come back from a learner."""

from __future__ import annotations

import numpy as np

from flowrl.batch import Array, Batch


def no_priorities() -> Batch:
    """The initial token: in the first round nothing was learned from yet."""
    return Batch({"priority": np.empty(0, np.float32)})


def sound_priorities(whose: str, priorities: Array, shape: tuple[int, ...]) -> Array:
    """Priorities as they may be: one a row, finite, not below zero."""
    found = np.asarray(priorities, np.float64)
    if found.shape != shape:
        raise ValueError(
            f"{whose}: priorities of shape {found.shape} came for a batch of {shape[0]} rows; "
            "give one for each row"
        )
    wrong = ~(np.isfinite(found) & (found >= 0))
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        raise ValueError(
            f"{whose}: the priority of row {row} is {found[wrong][0]}; "
            "priorities are finite and from 0"
        )
    return found
