"""A ring of columns: the newest rows, in arrays that are allocated once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Array, Batch, row_bytes
from flowrl.nodes.buffers.capacity import must_fit, rows_for


class Ring:
    """Keeps the newest `size` rows. Rows are numbered as they come; a number is never used twice."""

    def __init__(
        self, size: int, size_bytes: str | None = None, notes: Mapping[str, str] | None = None
    ) -> None:
        """`notes` are dtypes of what is noted beside each row, and not given with it."""
        self.size = size  # known for certain after the first push, if bytes limit it, too
        self.rows = 0  # that are held
        self.written = 0  # ever; the number that the next row gets
        self.columns: dict[str, Array] = {}
        self.notes: dict[str, Array] = {}
        self._dtypes = dict(notes or {})
        self._next = 0  # where the next row goes
        self._size_bytes = size_bytes

    def push(self, columns: Mapping[str, Array], **notes: float) -> list[slice]:
        """Write rows behind the newest, over the oldest; gives the places, in the rows' order."""
        if not self.columns:
            self._allocate(columns)
        rows = self._check(columns)
        start, stop = self._next, self._next + rows
        if stop <= self.size:
            for name, array in columns.items():
                self.columns[name][start:stop] = array
            places = [slice(start, stop)]
        else:
            places = self._push_over_the_end(columns, rows)
        for name, value in notes.items():
            for part in places:
                self.notes[name][part] = value
        self.written += rows
        self._next = places[-1].stop % self.size
        self.rows = min(self.rows + rows, self.size)
        return places

    def _push_over_the_end(self, columns: Mapping[str, Array], rows: int) -> list[slice]:
        """The rest goes to the beginning; of more rows than there are places, the newest."""
        kept = min(rows, self.size)
        head = min(kept, self.size - self._next)
        parts = [slice(self._next, self._next + head)]
        if head < kept:
            parts.append(slice(0, kept - head))
        for name, array in columns.items():
            ring, new = self.columns[name], array[rows - kept :]
            ring[parts[0]] = new[:head]
            if head < kept:
                ring[parts[1]] = new[head:]
        return parts

    def take(self, places: Array) -> dict[str, Array]:
        """The rows at these places: one gather a column."""
        # "clip" does not look for wrong places, which would cost as much as the gather of a small
        # column; all places come from this ring.
        return {name: array.take(places, 0, mode="clip") for name, array in self.columns.items()}

    def places_of(self, numbers: Array) -> Array:
        """Where the rows of these numbers lie, if they are still held."""
        return (numbers - (self.written - self._next)) % self.size

    def numbers_of(self, places: Array) -> Array:
        """The numbers of the rows that lie there."""
        return self.written - 1 - (self._next - 1 - places) % self.size

    def holds(self, numbers: Array) -> Array:
        """Whether the rows of these numbers are still held."""
        return (numbers >= self.written - self.rows) & (numbers < self.written)

    def clear(self) -> None:
        """Forget all rows; the memory stays."""
        self.rows = self._next = 0

    def state_dict(self) -> dict[str, Any]:
        """The rows that are held, and where the next one goes."""
        held = slice(0, self.rows)
        return {
            "columns": {name: array[held].copy() for name, array in self.columns.items()},
            "notes": {name: array[held].copy() for name, array in self.notes.items()},
            "size": self.size,
            "next": self._next,
            "written": self.written,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold these rows, in the same places; in a ring of another size, the oldest first."""
        rows = len(next(iter(state["columns"].values()), ()))
        if rows > self.size:
            raise ValueError(f"the state holds {rows} rows; this buffer's size is {self.size}")
        self.clear()
        self.columns, self.notes = {}, {}
        start = int(state["next"])
        if state["size"] != self.size and rows == state["size"]:
            turn, start = start, rows
        else:
            turn = 0
        if state["columns"]:
            self.push({name: np.roll(a, -turn, 0) for name, a in state["columns"].items()})
        for name, array in state["notes"].items():
            self.notes[name][:rows] = np.roll(array, -turn, 0)
        self._next = start % self.size
        self.written = int(state["written"])

    def _allocate(self, columns: Mapping[str, Array]) -> None:
        noted = sum(np.dtype(dtype).itemsize for dtype in self._dtypes.values())
        bytes_of_row = row_bytes(Batch(columns).schema) + noted
        self.size = rows_for(self.size, self._size_bytes, bytes_of_row)
        must_fit(self.size * bytes_of_row)
        for name, array in columns.items():
            self.columns[name] = np.empty((self.size, *array.shape[1:]), array.dtype)
        self.notes = {name: np.zeros(self.size, dtype) for name, dtype in self._dtypes.items()}

    def _check(self, columns: Mapping[str, Array]) -> int:
        """Nothing is written where something does not fit."""
        if columns.keys() != self.columns.keys():
            raise ValueError(
                f"the rows have the columns {', '.join(columns)}; "
                f"the buffer holds {', '.join(self.columns)}"
            )
        rows = 0
        for name, array in columns.items():
            ring = self.columns[name]
            if array.dtype != ring.dtype or array.shape[1:] != ring.shape[1:]:
                raise ValueError(
                    f"column '{name}' has rows of {array.dtype}{list(array.shape[1:])}; "
                    f"the buffer holds {ring.dtype}{list(ring.shape[1:])}"
                )
            rows = len(array)
        return rows
