"""The newest rows of a stream, as a node remembers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array


class RecentRows:
    """Keeps the newest `size` rows of some columns. Memory grows with the rows that have arrived."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.written = 0  # rows that ever arrived
        self._columns: dict[str, Array] = {}

    def __len__(self) -> int:
        return min(self.written, self.size)

    def add(self, columns: Mapping[str, Array]) -> None:
        """Add rows, which replace the oldest."""
        rows = len(next(iter(columns.values())))
        if rows == 0:
            return
        self._reserve(columns, min(self.size, self.written + rows))
        places = np.arange(self.written, self.written + rows)[-self.size :] % self.size
        for name, column in columns.items():
            self._columns[name][places] = column[-self.size :]
        self.written += rows

    def take(self, index: Array) -> dict[str, Array]:
        """Rows by their numbers from 0, in no particular order of age."""
        return {name: column[index] for name, column in self._columns.items()}

    def places(self) -> Array:
        """The numbers of all rows, the oldest first."""
        first = self.written % self.size if self.written > self.size else 0
        return (first + np.arange(len(self))) % self.size

    def all(self) -> dict[str, Array]:
        """All rows, the oldest first."""
        return self.take(self.places())

    def _reserve(self, columns: Mapping[str, Array], rows: int) -> None:
        """Make room for so many rows, doubling the arrays, so that each row is copied a few times at most."""
        held = len(next(iter(self._columns.values()))) if self._columns else 0
        if rows <= held:
            return
        capacity = min(self.size, max(rows, 2 * held))
        for name, column in columns.items():
            grown = np.zeros((capacity, *column.shape[1:]), column.dtype)
            if held:
                grown[:held] = self._columns[name]
            self._columns[name] = grown

    def state_dict(self) -> dict[str, Any]:
        return {"written": self.written, "columns": self.take(np.arange(len(self)))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.written = int(state["written"])
        self._columns = {name: np.array(column) for name, column in state["columns"].items()}
