"""A ring of columns: the newest rows, in arrays that are allocated once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Array


class Ring:
    """Keeps the newest `size` rows; arrays are allocated at the first push."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows = 0  # that are held
        self.columns: dict[str, Array] = {}
        self._next = 0  # where the next row goes

    def push(self, columns: Mapping[str, Array]) -> None:
        """Write rows behind the newest, over the oldest."""
        if not self.columns:
            self._allocate(columns)
        if columns.keys() != self.columns.keys():
            raise ValueError(
                f"the rows have the columns {', '.join(columns)}; "
                f"the buffer holds {', '.join(self.columns)}"
            )
        total = len(next(iter(columns.values())))
        count = min(total, self.size)
        head = min(count, self.size - self._next)  # the rest goes to the beginning
        for name, array in columns.items():
            ring, new = self.columns[name], array[total - count :]
            ring[self._next : self._next + head] = new[:head]
            if head < count:
                ring[: count - head] = new[head:]
        self._next = (self._next + count) % self.size
        self.rows = min(self.rows + count, self.size)

    def take(self, index: Array) -> dict[str, Array]:
        """The rows at these places: one gather a column."""
        return {name: array.take(index, 0) for name, array in self.columns.items()}

    def clear(self) -> None:
        """Forget all rows; the memory stays."""
        self.rows = self._next = 0

    def state_dict(self) -> dict[str, Any]:
        """The rows that are held, and where the next one goes."""
        return {
            "columns": {name: array[: self.rows].copy() for name, array in self.columns.items()},
            "next": self._next,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold these rows, in the same places."""
        columns, rows = state["columns"], len(next(iter(state["columns"].values()), ()))
        if rows > self.size:
            raise ValueError(f"the state holds {rows} rows; this buffer's size is {self.size}")
        self.clear()
        self.columns = {}
        if columns:
            self.push(columns)
        self._next = int(state["next"]) % self.size

    def _allocate(self, columns: Mapping[str, Array]) -> None:
        for name, array in columns.items():
            self.columns[name] = np.empty((self.size, *array.shape[1:]), array.dtype)
