"""Running mean and variance of a stream of rows, and of the leaves of observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Schema
from flowrl.nodes.observations import SEPARATOR

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


class ObsMoments:
    """The running moments of real-valued observations, by leaf; those of `obs` and `next_obs` are the same."""

    def __init__(self, columns: Schema) -> None:
        real = {n: c for n, c in columns.items() if np.dtype(c.dtype).kind == "f"}
        self.moments = {_leaf(n): Moments(c.shape) for n, c in real.items()}

    def of(self, name: str) -> Moments | None:
        """The moments of a column; None if it is not normalised."""
        return (
            self.moments.get(_leaf(name)) if name.partition(SEPARATOR)[0].endswith("obs") else None
        )

    def update(self, columns: Mapping[str, Array]) -> None:
        """Update each leaf once, by the next observations if there are any."""
        for name in sorted(columns):  # `next_obs` before `obs`
            moments = self.of(name)
            if moments is not None and not (name.startswith("obs") and "next_" + name in columns):
                moments.update(columns[name])

    def state_dict(self) -> dict[str, Any]:
        return {leaf: moments.state_dict() for leaf, moments in self.moments.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for leaf, moments in self.moments.items():
            moments.load_state_dict(state[leaf])


def _leaf(name: str) -> str:
    return name.partition(SEPARATOR)[2]
