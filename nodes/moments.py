"""Running mean and variance of a stream of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array

MIN_VARIANCE = 1e-12  # smaller variances are treated as 0


class Moments:
    """The mean and variance of all rows, merged batch by batch (Chan, Golub & LeVeque 1979)."""

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.count = 0
        self.mean = np.zeros(shape)
        self.squares = np.zeros(shape)  # sum of squared distances from the mean

    def update(self, rows: Array) -> None:
        """Add a batch (B, …)."""
        n, total = len(rows), self.count + len(rows)
        mean = rows.mean(0, dtype=np.float64)
        delta = mean - self.mean
        self.squares = (
            self.squares + ((rows - mean) ** 2).sum(0) + delta**2 * (self.count * n / total)
        )
        self.mean = self.mean + delta * (n / total)
        self.count = total

    @property
    def std(self) -> Array:
        """The standard deviation, or 1 where nothing has varied yet, so that it is a valid divisor."""
        variance = self.squares / max(self.count, 1)
        return np.where(variance > MIN_VARIANCE, np.sqrt(variance), 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = int(np.ravel(state["count"])[0])
        self.mean, self.squares = np.array(state["mean"]), np.array(state["squares"])
