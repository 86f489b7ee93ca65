"""A ring of columns: the newest rows, in arrays that are allocated once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flowrl.batch import Array, Column, Schema, row_bytes
from flowrl.nodes.buffers.capacity import must_fit, rows_for
from flowrl.nodes.buffers.once import Once


class Ring:
    """Keeps the newest `size` rows. Rows are numbered as they come; a number is never used twice."""

    def __init__(
        self,
        size: int,
        size_bytes: str | None = None,
        notes: Mapping[str, str] | None = None,
        once: Once | None = None,
    ) -> None:
        """`notes` are dtypes of what is noted beside each row, and not given with it.

        With `once` each observation is stored once, else as it comes.
        """
        self.size = size  # known for certain after the first push, if bytes limit it, too
        self.rows = 0  # that are held
        self.written = 0  # ever; the number that the next row gets
        self.columns: dict[str, Array] = {}
        self.notes: dict[str, Array] = {}
        self._dtypes = dict(notes or {})
        self._once = once
        self._schema: Schema = {}
        self._looks: dict[str, tuple[Any, tuple[int, ...]]] = {}  # the same, quicker to compare
        self._next = 0  # where the next row goes
        self._size_bytes = size_bytes

    def push(self, columns: Mapping[str, Array], **notes: float) -> list[slice]:
        """Write rows behind the newest, over the oldest; gives the places, in the rows' order."""
        if not self.columns:
            self._allocate({k: Column(str(v.dtype), v.shape[1:]) for k, v in columns.items()})
        rows = self._check(columns)
        if self._once is not None:
            columns = {name: array[-self.size :] for name, array in columns.items()}
            self.written += max(rows - self.size, 0)  # as where all are written
            rows = min(rows, self.size)
            columns = self._once.encode(columns, self.written)
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

    def take(self, places: Array, names: Iterable[str] | None = None) -> dict[str, Array]:
        """The rows at these places, or these columns of them: one gather a column."""
        # "clip" does not look for wrong places, which would cost as much as the gather of a small
        # column; all places come from this ring.
        kept = self.columns if names is None else {name: self.columns[name] for name in names}
        found = {name: array.take(places, 0, mode="clip") for name, array in kept.items()}
        return found if self._once is None else self._once.decode(found)

    def in_order(self) -> dict[str, Array]:
        """All rows that are held, the oldest first."""
        return self.take(self.places_of(np.arange(self.written - self.rows, self.written)))

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, and of what is noted beside them."""
        arrays = [*self.columns.values(), *self.notes.values()]
        return sum(array.nbytes for array in arrays) + (self._once.nbytes if self._once else 0)

    def places_of(self, numbers: Array) -> Array:
        """Where the rows of these numbers lie, if they are still held."""
        return (numbers - (self.written - self._next)) % self.size

    def place_of(self, number: int) -> int:
        """The same of one row."""
        return (number - (self.written - self._next)) % self.size

    def numbers_of(self, places: Array) -> Array:
        """The numbers of the rows that lie there."""
        return self.written - 1 - (self._next - 1 - places) % self.size

    def holds(self, numbers: Array) -> Array:
        """Whether the rows of these numbers are still held."""
        return (numbers >= self.written - self.rows) & (numbers < self.written)

    def clear(self) -> None:
        """Forget all rows; the memory stays."""
        self.rows = self._next = 0
        if self._once is not None:
            self._once.clear()

    def state_dict(self) -> dict[str, Any]:
        """The rows that are held, and where the next one goes."""
        held = slice(0, self.rows)
        return {
            "columns": {name: array[held].copy() for name, array in self.columns.items()},
            "notes": {name: array[held].copy() for name, array in self.notes.items()},
            "schema": {name: (c.dtype, c.shape) for name, c in self._schema.items()},
            "once": None if self._once is None else self._once.state_dict(),
            "size": self.size,
            "next": self._next,
            "written": self.written,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold these rows, in the same places; in a ring of another size, the oldest first."""
        rows = len(next(iter(state["columns"].values()), ()))
        if rows > self.size:
            raise ValueError(f"the state holds {rows} rows; this buffer's size is {self.size}")
        if (state["once"] is None) != (self._once is None):
            raise ValueError("the state is of a buffer that stores observations in another way")
        self.clear()
        self.columns, self.notes = {}, {}
        turn, start = 0, int(state["next"])
        if state["size"] != self.size and rows == state["size"]:
            turn, start = start, rows
        if state["columns"]:
            self._allocate(
                {k: Column(dtype, tuple(s)) for k, (dtype, s) in state["schema"].items()}
            )
        for into, given in ((self.columns, state["columns"]), (self.notes, state["notes"])):
            for name, array in given.items():
                into[name][:rows] = np.roll(array, -turn, 0)
        if self._once is not None:
            self._once.load_state_dict(state["once"])
        self.rows, self._next, self.written = rows, start % self.size, int(state["written"])

    def _allocate(self, schema: Schema) -> None:
        noted = sum(np.dtype(dtype).itemsize for dtype in self._dtypes.values())
        once = self._once
        bytes_of_row = noted + (row_bytes(schema) if once is None else once.row_bytes(schema))
        self.size = rows_for(self.size, self._size_bytes, bytes_of_row)
        must_fit(self.size * bytes_of_row)
        kept = schema if once is None else once.allocate(schema, self.size)
        self.columns = {name: column.empty(self.size) for name, column in kept.items()}
        self.notes = {name: np.zeros(self.size, dtype) for name, dtype in self._dtypes.items()}
        self._schema = schema
        self._looks = {name: (np.dtype(c.dtype), c.shape) for name, c in schema.items()}

    def _check(self, columns: Mapping[str, Array]) -> int:
        """Nothing is written where something does not fit."""
        if columns.keys() != self._looks.keys():
            raise ValueError(
                f"the rows have the columns {', '.join(columns)}; "
                f"the buffer holds {', '.join(self._looks)}"
            )
        rows = 0
        for name, array in columns.items():
            dtype, shape = self._looks[name]
            if array.dtype != dtype or array.shape[1:] != shape:
                raise ValueError(
                    f"column '{name}' has rows of {array.dtype}{list(array.shape[1:])}; "
                    f"the buffer holds {dtype}{list(shape)}"
                )
            rows = len(array)
        return rows
