"""A ring of columns: it keeps the newest rows, in places that are allocated once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flowrl.core.array_pieces import LiveArray
from flowrl.core.batch import Array, Column, Schema, row_bytes
from flowrl.nodes.buffers.storage.deduplication import FrameDeduplicator
from flowrl.nodes.buffers.storage.limits import max_rows, require_memory
from flowrl.nodes.buffers.storage.storage import (
    ColumnStore,
    MemoryStorage,
    RecoveredRows,
    RingLayout,
    Storage,
    as_column_store,
)

# Metadata that are written only when their rows are pushed. Others change at any time.
PUSHED_METADATA = ("train_iters", "env_steps")

ArrayTypes = list[tuple[str, Any, tuple[int, ...]]]  # name, dtype and shape of each column


class Ring:
    """Keeps the newest `size` rows. Rows are numbered in the order of their arrival; a number is never reused."""

    def __init__(
        self,
        size: int,
        size_bytes: str | None = None,
        metadata: Mapping[str, str] | None = None,
        deduplicator: FrameDeduplicator | None = None,
        storage: Storage | None = None,
    ) -> None:
        """Make an empty ring, or continue with the rows that an earlier process left in the storage.

        `metadata` names additional columns by dtype, which are in memory and are not part of rows. A `deduplicator`
        stores each observation once.
        """
        self.size = size  # if bytes limit it as well, it is final after the first push
        self.row_count = 0  # the number of rows that are held
        self.written = 0  # rows ever written; the number of the next row
        self.columns: dict[str, ColumnStore] = {}
        self.metadata: dict[str, Array] = {}
        self.storage = MemoryStorage() if storage is None else storage
        self._metadata_dtypes = dict(metadata or {})
        self._deduplicator = deduplicator
        self._schema: Schema = {}
        self._row_bytes = 0  # before compression
        self._checked_types: ArrayTypes = []  # the types of the newest push, which are valid
        self._next_place = 0
        # Replaced when the bytes at places change without new numbers of rows.
        self._content = object()
        self._size_bytes = size_bytes
        self._persistent = self.storage.persistent
        self.recovery_report = ""  # describes the rows that an earlier process left
        recovered = self.storage.recover()
        if recovered is not None:
            try:
                self._continue_with(recovered)
            except BaseException:
                self.storage.close()
                raise

    def push(self, columns: Mapping[str, Array], **metadata: float | Array) -> list[slice]:
        """Write rows over the oldest; return their places, in the order of the rows.

        Each of the `metadata` is one value for all rows, or a value for each. If there are more rows than
        places, only the newest rows are written.
        """
        if not self._schema:
            self._allocate({k: Column(str(v.dtype), v.shape[1:]) for k, v in columns.items()})
        rows = self._check(columns)
        if rows > self.size:
            columns = {name: array[-self.size :] for name, array in columns.items()}
            self.written += rows - self.size
            rows = self.size
        held = min(self.row_count + rows, self.size)
        if self._deduplicator is not None:
            encoded = self._deduplicator.encode(columns, self.written, held)
            columns, held = encoded.columns, encoded.held
        parts = self._next_places(rows)
        self.row_count = held - rows  # the rows that stay valid if writing fails
        if self._persistent:
            self.storage.release_before(self.written + rows - held)
        if self._deduplicator is not None:
            encoded.write_frames()
        self._write(columns, parts)
        for name, value in metadata.items():
            _write_values(self.metadata[name], parts, value)
        self.written += rows
        self.row_count = held
        self._next_place = parts[-1].stop % self.size
        if self._persistent:
            self.storage.after_write(*self._held_range)
        return parts

    @property
    def oldest(self) -> int:
        """The number of the oldest row."""
        return self.written - self.row_count

    @property
    def _held_range(self) -> tuple[int, int, int]:
        """The numbers of the first row and after the last row, and the place of the next row."""
        return self.oldest, self.written, self._next_place

    def _next_places(self, rows: int) -> list[slice]:
        """Return the places of the next rows: one slice, or two if they wrap around."""
        start, stop = self._next_place, self._next_place + rows
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
        """Return the rows at these places, or some of their columns, with one gather for each column."""
        # "clip" skips the check for invalid places, which would cost as much as the gather of a small
        # column. All places come from this ring.
        stores = self.columns if names is None else {name: self.columns[name] for name in names}
        taken = {name: rows.take(places, 0, mode="clip") for name, rows in stores.items()}
        return taken if self._deduplicator is None else self._deduplicator.decode(taken)

    def stored_column(self, name: str) -> Array:
        """Return a column of all rows as it is stored (frames as places), the oldest row first."""
        if not self.row_count:
            return np.empty(0, self._schema[name].dtype if self._schema else None)
        return self.columns[name].take(self.held_places(), 0, mode="clip")

    def in_order(self) -> dict[str, Array]:
        """Return all rows, the oldest first."""
        return self.take(self.held_places())

    @property
    def nbytes(self) -> int:
        """The bytes of all rows and their metadata."""
        pools = self._deduplicator.nbytes if self._deduplicator else 0
        return sum(a.nbytes for a in [*self.columns.values(), *self.metadata.values()]) + pools

    @property
    def used_places(self) -> int:
        """The number of places up to the last one that was written since `clear`."""
        if self._next_place < self.row_count or self.row_count == self.size:
            return self.size
        return self._next_place

    def places_from_oldest(self, index: Array) -> Array:
        """Map indices from 0 to distinct places: counted from the oldest row, or in a full ring from place 0."""
        if self._begins_at_place_0:
            return index
        return (index + self._next_place - self.row_count) % self.size

    def indices_of(self, numbers: Array) -> Array:
        """Return the indices that `places_from_oldest` maps to the places of the rows with these numbers."""
        return self.places_of(numbers) if self._begins_at_place_0 else numbers - self.oldest

    @property
    def _begins_at_place_0(self) -> bool:
        """Whether rows are at all places from 0 to their number."""
        return self.row_count in (self.size, self._next_place)

    def held_places(self) -> Array:
        """Return the places of all rows, the oldest first."""
        return self.places_of(np.arange(self.oldest, self.written))

    def places_of(self, numbers: Array) -> Array:
        """Return the places of the rows with these numbers, which must be held."""
        return (numbers - (self.written - self._next_place)) % self.size

    def place_of(self, number: int) -> int:
        """Return the place of one row."""
        return (number - (self.written - self._next_place)) % self.size

    def numbers_of(self, places: Array) -> Array:
        """Return the numbers of the rows at these places."""
        return self.written - 1 - (self._next_place - 1 - places) % self.size

    def holds(self, numbers: Array) -> Array:
        """Return which of the rows with these numbers are held."""
        return (numbers >= self.oldest) & (numbers < self.written)

    def discard(self, places: Array) -> None:
        """Let the storage free these rows, which are never read again."""
        self.storage.discard(self.columns, places)
        if self.storage.frees_rows:
            self._content = object()

    def clear(self) -> None:
        """Remove all rows. Memory and files stay allocated."""
        if self._schema:
            self.storage.release_before(self.written)
            self.discard(np.arange(self.size))
        self.row_count = self._next_place = 0
        self._content = object()
        if self._deduplicator is not None:
            self._deduplicator.clear()

    def flush(self) -> None:
        """Make the rows durable if the storage is persistent."""
        if self._schema:
            self.storage.flush(*self._held_range)

    def close(self) -> None:
        """Flush and release the storage. The ring cannot be used afterwards."""
        if self._schema and self.columns:
            self.storage.flush(*self._held_range, closed=True)
        self.columns = {}
        self.storage.close()

    def state_dict(self, live: bool = False) -> dict[str, Any]:
        """Return the rows at their places, and the place of the next row.

        With `live`, columns and pushed metadata are `LiveArray`.
        """
        used, frames = self.used_places, self._deduplicator
        if not live:
            require_memory(used * self._row_bytes, "a copy of the buffer's rows")
        columns = {name: self._live_column(rows, used) for name, rows in self.columns.items()}
        metadata = {
            name: self._live_column(as_column_store(array), used)
            if live and name in PUSHED_METADATA
            else array[:used].copy()
            for name, array in self.metadata.items()
        }
        return {
            "columns": columns if live else {name: rows.copy() for name, rows in columns.items()},
            "metadata": metadata,
            "schema": {name: (c.dtype, c.shape) for name, c in self._schema.items()},
            "frames": None if frames is None else frames.state_dict(live),
            "size": self.size,
            "rows": self.row_count,
            "next_place": self._next_place,
            "written": self.written,
        }

    def _live_column(self, rows: ColumnStore, used: int) -> LiveArray:
        """Return the first `used` places of a column. A place has changed if a row with a new number is there."""
        sample = rows[0:0]
        return LiveArray(
            sample.dtype,
            (used, *sample.shape[1:]),
            lambda first, stop: rows[first:stop],
            self._newest_number,
            self._content,
        )

    def _newest_number(self, first: int, stop: int) -> int:
        """Return the number of the newest row at these places. Numbers increase, except after the newest row."""
        newest = (self._next_place - 1) % self.size
        place = newest if first <= newest < stop else stop - 1
        return self.written - 1 - (self._next_place - 1 - place) % self.size

    def load_state_dict(self, state: Mapping[str, Any], may_keep: bool = False) -> None:
        """Restore rows at their places, or the oldest first from place 0 on if the size differs.

        With `may_keep`, arrays of the state may become those of the ring, which writes to them.
        """
        if (state["frames"] is None) != (self._deduplicator is None):
            raise ValueError(
                "the state and this buffer differ in whether frames are deduplicated; "
                "set `store_once` as in the run that saved the state"
            )
        schema = {k: Column(dtype, tuple(s)) for k, (dtype, s) in state["schema"].items()}
        if schema and not self._schema:
            self._allocate(schema)
        rows = int(state["rows"])
        if rows > self.size:
            raise ValueError(f"the state holds {rows} rows; this buffer's size is {self.size}")
        self.clear()
        if schema:
            self._require_schema(schema)
        if self._deduplicator is not None and schema:
            self._deduplicator.load_state_dict(state["frames"])
        self.row_count, self.written = rows, int(state["written"])
        self._next_place = int(state["next_place"])
        columns, metadata = state["columns"], state["metadata"]
        if state["size"] != self.size:
            places = (self._next_place - rows + np.arange(rows)) % int(state["size"])
            columns = {name: array[places] for name, array in columns.items()}
            metadata = {name: array[places] for name, array in metadata.items()}
            self._next_place = rows % self.size
        for name, array in columns.items():
            self.columns[name] = self.storage.load(self.columns[name], array, may_keep)
        for name, array in metadata.items():
            self.metadata[name][: len(array)] = array
        self.flush()

    def _allocate(self, schema: Schema) -> None:
        deduplicator, (size, metadata_bytes) = self._deduplicator, self._size_for(schema)
        require_memory(self.storage.memory_bytes(size * self._row_bytes) + size * metadata_bytes)
        if deduplicator is None:
            layout = RingLayout(schema, size, None)
            allocations = {name: (column, size) for name, column in schema.items()}
        else:
            allocations = dict(deduplicator.allocations(schema, size))
            layout = RingLayout(schema, size, deduplicator.stacked_frames)
        self._use(layout, self.storage.allocate(allocations, layout))

    def _size_for(self, schema: Schema) -> tuple[int, int]:
        """Return the number of rows that fit, and the bytes of the metadata of each row."""
        metadata_bytes = sum(np.dtype(dtype).itemsize for dtype in self._metadata_dtypes.values())
        deduplicator = self._deduplicator
        self._row_bytes = deduplicator.row_bytes(schema) if deduplicator else row_bytes(schema)
        rows = max_rows(self.size, self._size_bytes, self._row_bytes + metadata_bytes)
        return rows, metadata_bytes

    def _continue_with(self, recovered: RecoveredRows) -> None:
        """Continue with the rows that an earlier process left."""
        layout, record, deduplicator = recovered.layout, recovered.record, self._deduplicator
        if deduplicator is not None:
            deduplicator.allocations(layout.schema, layout.size)
        size, _ = self._size_for(layout.schema)
        frames = None if deduplicator is None else deduplicator.stacked_frames
        if (size, frames) != (layout.size, layout.frames):
            raise ValueError(
                f"the storage was made for {_size_text(layout.size, layout.frames)}; this buffer is "
                f"for {_size_text(size, frames)}; set another `path`, or the same parameters"
            )
        self._use(layout, recovered.columns)
        self.row_count = record.stop_row - record.first_row
        self.written, self._next_place = record.stop_row, record.next_place
        self.recovery_report = recovered.report
        if deduplicator is not None and self.row_count:
            stored = {name: self.stored_column(name) for name in deduplicator.deduplicated_columns}
            deduplicator.recover(stored, record.first_row)

    def _use(self, layout: RingLayout, columns: dict[str, ColumnStore]) -> None:
        self.size, self._schema, self.columns = layout.size, layout.schema, columns
        self.metadata = {
            name: np.zeros(self.size, dtype) for name, dtype in self._metadata_dtypes.items()
        }
        if self._deduplicator is not None:
            limited = self._size_bytes is not None
            self._deduplicator.attach_pools(self._schema, columns, self.storage, limited)

    def _check(self, columns: Mapping[str, Array]) -> int:
        """Refuse columns of other types before anything is written; return the number of rows."""
        types = [(name, array.dtype, array.shape) for name, array in columns.items()]
        if types != self._checked_types:
            self._require_schema({k: Column(str(v.dtype), v.shape[1:]) for k, v in columns.items()})
            self._checked_types = types
        return types[0][2][0] if types else 0

    def _require_schema(self, schema: Schema) -> None:
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


def _size_text(size: int, frames: Mapping[str, int] | None) -> str:
    if frames is None:
        return f"{size} rows"
    columns = ", ".join(f"{name} of {n} frames" for name, n in frames.items())
    return f"{size} rows with deduplicated frames ({columns or 'none'})"


def _write_values(array: Array, parts: list[slice], value: float | Array) -> None:
    """Write one value, or the newest of some values, to these places."""
    values = np.asarray(value)
    if not values.ndim:
        for part in parts:
            array[part] = value
        return
    begin = len(values) - sum(part.stop - part.start for part in parts)
    for part in parts:
        end = begin + part.stop - part.start
        array[part] = values[begin:end]
        begin = end
