"""A ring of columns: the newest rows, at places that are allocated once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema, row_bytes
from flowrl.nodes.buffers.capacity import must_fit, rows_for
from flowrl.nodes.buffers.once import Once
from flowrl.nodes.buffers.storage import Found, Memory, Rows, Storage, Table

Looks = list[tuple[str, Any, tuple[int, ...]]]  # dtype and shape of each column


class Ring:
    """Keeps the newest `size` rows. Rows are numbered as they come; a number is never used twice."""

    def __init__(
        self,
        size: int,
        size_bytes: str | None = None,
        notes: Mapping[str, str] | None = None,
        once: Once | None = None,
        storage: Storage | None = None,
    ) -> None:
        """`notes` are dtypes of what is noted beside each row, in memory, and not given with it.

        With `once` each observation is stored once, else as it comes.
        """
        self.size = size  # known for certain after the first push, if bytes limit it, too
        self.rows = 0  # that are held: the newest ones
        self.written = 0  # ever; the number that the next row gets
        self.columns: dict[str, Rows] = {}
        self.notes: dict[str, Array] = {}
        self.storage = Memory() if storage is None else storage
        self._dtypes = dict(notes or {})
        self._once = once
        self._schema: Schema = {}
        self._row_bytes = 0  # of a row that is not compressed
        self._seen: Looks = []  # how the newest push looked, which was found to be right
        self._next = 0  # where the next row goes
        self._size_bytes = size_bytes
        self._keeps = self.storage.keeps
        self.report = ""  # what was found in a storage that an earlier process has left
        found = self.storage.open()
        if found is not None:
            try:
                self._adopt(found)
            except BaseException:
                self.storage.close()
                raise

    def push(self, columns: Mapping[str, Array], **notes: float) -> list[slice]:
        """Write rows behind the newest, over the oldest; gives the places, in the rows' order.

        Of more rows than there are places, the newest are written.
        """
        if not self._schema:
            self._allocate({k: Column(str(v.dtype), v.shape[1:]) for k, v in columns.items()})
        rows = self._check(columns)
        if rows > self.size:
            columns = {name: array[-self.size :] for name, array in columns.items()}
            self.written += rows - self.size
            rows = self.size
        held = min(self.rows + rows, self.size)
        if self._once is not None:
            encoded = self._once.encode(columns, self.written, held)
            columns, held = encoded.columns, encoded.held
        parts = self._parts(rows)
        self.rows = held - rows  # should writing fail
        if self._keeps:
            self.storage.leave(self.written + rows - held)
        if self._once is not None:
            encoded.write()
        self._write(columns, parts)
        for name, value in notes.items():
            noted = self.notes[name]
            for part in parts:
                noted[part] = value
        self.written += rows
        self.rows = held
        self._next = parts[-1].stop % self.size
        if self._keeps:
            self.storage.wrote(*self._held)
        return parts

    @property
    def _held(self) -> tuple[int, int, int]:
        """Numbers of the rows that are held, and where the next one goes."""
        return self.written - self.rows, self.written, self._next

    def _parts(self, rows: int) -> list[slice]:
        """Where the next rows go: the rest to the beginning."""
        start, stop = self._next, self._next + rows
        if stop <= self.size:
            return [slice(start, stop)]
        return [slice(start, self.size), slice(0, stop - self.size)]

    def _write(self, columns: Mapping[str, Array], parts: list[slice]) -> None:
        if len(parts) == 1:
            part = parts[0]
            for name, array in columns.items():
                self.columns[name][part] = array
            return
        head = parts[0].stop - parts[0].start
        for name, array in columns.items():
            rows = self.columns[name]
            rows[parts[0]], rows[parts[1]] = array[:head], array[head:]

    def take(self, places: Array, names: Iterable[str] | None = None) -> dict[str, Array]:
        """The rows at these places, or these columns of them: one gather a column."""
        # "clip" does not look for wrong places, which would cost as much as the gather of a small
        # column; all places come from this ring.
        kept = self.columns if names is None else {name: self.columns[name] for name in names}
        found = {name: rows.take(places, 0, mode="clip") for name, rows in kept.items()}
        return found if self._once is None else self._once.decode(found)

    def column(self, name: str) -> Array:
        """A column of all rows that are held, as it is kept, the oldest first."""
        if not self.rows:
            return np.empty(0, self._schema[name].dtype if self._schema else None)
        return self.columns[name].take(self.held_places(), 0, mode="clip")

    def in_order(self) -> dict[str, Array]:
        """All rows that are held, the oldest first."""
        return self.take(self.held_places())

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, and of what is noted beside them."""
        once = self._once.nbytes if self._once else 0
        held = [*self.columns.values(), *self.notes.values()]
        return sum(rows.nbytes for rows in held) + once

    @property
    def used(self) -> int:
        """Places from the first to the last that has a row, or had one before it left."""
        return self.size if self._next < self.rows or self.rows == self.size else self._next

    def places_from_oldest(self, index: Array) -> Array:
        """Places of rows that are counted from the oldest, 0, in a full ring from any."""
        if self.rows in (self.size, self._next):
            return index
        return (index + self._next - self.rows) % self.size

    def held_places(self) -> Array:
        """Where all rows lie that are held, the oldest first."""
        return self.places_of(np.arange(self.written - self.rows, self.written))

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

    def forget(self, places: Array) -> None:
        """These rows are never taken again: storage may free what it can."""
        self.storage.forget(self.columns, places)

    def clear(self) -> None:
        """Forget all rows; the memory stays."""
        if self._schema:
            self.storage.leave(self.written)
            self.forget(np.arange(self.size))
        self.rows = self._next = 0
        if self._once is not None:
            self._once.clear()

    def flush(self) -> None:
        """Where rows outlive the process: those that are held now will."""
        if self._schema:
            self.storage.flush(*self._held)

    def close(self) -> None:
        """Let go of what the columns are kept in; the ring cannot be used any more."""
        if self._schema and self.columns:
            self.storage.flush(*self._held, closed=True)
        self.columns = {}
        self.storage.close()

    def state_dict(self) -> dict[str, Any]:
        """The rows that are held, the oldest first, and where the next one goes: a copy."""
        must_fit(self.rows * self._row_bytes, "a copy of the buffer's rows")
        places = self.held_places()
        return {
            "columns": {k: rows.take(places, 0, mode="clip") for k, rows in self.columns.items()},
            "notes": {name: noted[places] for name, noted in self.notes.items()},
            "schema": {name: (c.dtype, c.shape) for name, c in self._schema.items()},
            "once": None if self._once is None else self._once.state_dict(),
            "size": self.size,
            "next": self._next,
            "written": self.written,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold these rows, in the same places; in a ring of another size, from the first on."""
        if (state["once"] is None) != (self._once is None):
            raise ValueError("the state is of a buffer that stores observations in another way")
        schema = {k: Column(dtype, tuple(s)) for k, (dtype, s) in state["schema"].items()}
        if schema and not self._schema:
            self._allocate(schema)
        rows = len(next(iter(state["columns"].values()), ()))
        if rows > self.size:
            raise ValueError(f"the state holds {rows} rows; this buffer's size is {self.size}")
        self.clear()
        if schema:
            self._must_have(schema)
        if self._once is not None and schema:
            self._once.load_state_dict(state["once"])
        self.rows, self.written = rows, int(state["written"])
        self._next = int(state["next"]) if state["size"] == self.size else rows % self.size
        places = self.held_places()
        for into, given in ((self.columns, state["columns"]), (self.notes, state["notes"])):
            for name, array in given.items():
                into[name][places] = array
        self.flush()

    def _allocate(self, schema: Schema) -> None:
        once, (size, noted) = self._once, self._size_for(schema)
        must_fit(self.storage.memory_bytes(size * self._row_bytes) + size * noted)
        plain = {name: (column, size) for name, column in schema.items()}
        places = plain if once is None else once.places(schema, size)
        table = Table(schema, size, None if once is None else once.stacks)
        self._use(table, self.storage.allocate(places, table))

    def _size_for(self, schema: Schema) -> tuple[int, int]:
        """How many rows there will be, and the bytes of what is noted of each."""
        noted = sum(np.dtype(dtype).itemsize for dtype in self._dtypes.values())
        full = row_bytes(schema) if self._once is None else self._once.row_bytes(schema)
        self._row_bytes = full
        return rows_for(self.size, self._size_bytes, full + noted), noted

    def _adopt(self, found: Found) -> None:
        """Go on with the rows that are there."""
        table, claim, once = found.table, found.claim, self._once
        if once is not None:
            once.places(table.schema, table.size)
        size, _ = self._size_for(table.schema)
        stacks = None if once is None else once.stacks
        if (size, stacks) != (table.size, table.frames):
            raise ValueError(
                f"the storage was made for {_told(table.size, table.frames)}; this buffer is for "
                f"{_told(size, stacks)}; give it another `path`, or the same parameters"
            )
        self._use(table, found.columns)
        self.rows, self.written, self._next = claim.stop - claim.first, claim.stop, claim.next
        self.report = found.report
        if once is not None and self.rows:
            once.adopt({name: self.column(name) for name in once.kept}, claim.first)

    def _use(self, table: Table, columns: dict[str, Rows]) -> None:
        self.size, self._schema, self.columns = table.size, table.schema, columns
        self.notes = {name: np.zeros(self.size, dtype) for name, dtype in self._dtypes.items()}
        if self._once is not None:
            limited = self._size_bytes is not None
            self._once.use(self._schema, columns, self.storage, limited)

    def _check(self, columns: Mapping[str, Array]) -> int:
        """Nothing is written where something does not fit; gives how many rows these are."""
        looks = [(name, array.dtype, array.shape) for name, array in columns.items()]
        if looks != self._seen:
            self._must_have({k: Column(str(v.dtype), v.shape[1:]) for k, v in columns.items()})
            self._seen = looks
        return looks[0][2][0] if looks else 0

    def _must_have(self, schema: Schema) -> None:
        if schema.keys() != self._schema.keys():
            raise ValueError(
                f"the rows have the columns {', '.join(schema)}; "
                f"the buffer holds {', '.join(self._schema)}"
            )
        for name, column in schema.items():
            if column != self._schema[name]:
                raise ValueError(
                    f"column '{name}' has rows of {column}; the buffer holds {self._schema[name]}"
                )


def _told(size: int, stacks: Mapping[str, int] | None) -> str:
    if stacks is None:
        return f"{size} rows"
    frames = ", ".join(f"{name} of {n} frames" for name, n in stacks.items())
    return f"{size} rows, observations stored once ({frames or 'none'})"
