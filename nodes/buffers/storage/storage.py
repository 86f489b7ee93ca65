"""The interface between a ring and the medium that stores its columns, and the default medium: arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import Part, PartSpec
from flowrl.core.context import Context
from flowrl.nodes.buffers.storage.commit_file import CommitRecord
from flowrl.nodes.buffers.storage.limits import require_memory

# By name: the type of a column, and its number of places.
Allocations = Mapping[str, tuple[Column, int]]


class ColumnStore(Protocol):
    """The rows of one column, with the part of an array's interface that a ring uses."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """The bytes that the rows take in the medium."""

    def __getitem__(self, places: slice, /) -> Array:
        """Return the rows at a slice of places, perhaps as a view."""

    def __setitem__(self, places: Any, rows: Array, /) -> None:
        """Write rows at a slice or an array of places."""

    def take(self, places: Array, axis: int, /, *, mode: Literal["clip"]) -> Array:
        """Return the rows at these places. `axis` is 0, and every place exists."""


@dataclass(frozen=True, slots=True)
class RingLayout:
    """The columns of a ring as they are pushed, its size, and how frames are deduplicated."""

    schema: Schema
    size: int  # rows
    # The number of frames in each deduplicated observation; None without deduplication.
    frames: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class RecoveredRows:
    """The rows that an earlier process left in a storage."""

    layout: RingLayout
    columns: dict[str, ColumnStore]
    record: CommitRecord
    report: str  # for the node's log


class Storage(Part):
    """A kind of storage. One object stores the columns of one ring.

    The kind decides only where the bytes are; it never changes which rows are drawn.
    """

    kind = "storage"
    # Whether discarded rows are read as zeros, and not as they were.
    frees_rows: ClassVar[bool] = False
    # Whether rows outlive the process. Only then are `release_before` and `after_write` called.
    persistent: ClassVar[bool] = False

    @property
    def nondeterministic(self) -> str:
        """Why two runs may differ; empty if they do not."""
        return ""

    def memory_bytes(self, row_bytes: int) -> int:
        """Return the memory that rows of `row_bytes` in total will take, as far as it is known in advance."""
        raise NotImplementedError

    def bind(self, ctx: Context) -> None:
        """Adapt to the context of the buffer. A node calls this first."""

    def recover(self) -> RecoveredRows | None:
        """Open the rows that an earlier process left; return None if there are none."""
        return None

    def allocate(self, columns: Allocations, layout: RingLayout) -> dict[str, ColumnStore]:
        """Allocate all columns. A ring calls this once, and only if `recover` found nothing."""
        raise NotImplementedError

    def grow(self, name: str, rows: ColumnStore, places: int) -> ColumnStore:
        """Give a column more places. Each row keeps its place."""
        raise NotImplementedError

    def load(self, store: ColumnStore, rows: Array, may_keep: bool) -> ColumnStore:
        """Write rows into a column, from place 0 on, and return the column.

        With `may_keep`, the array of rows may become the column.
        """
        store[0 : len(rows)] = rows
        return store

    def discard(self, columns: Mapping[str, ColumnStore], places: Array) -> None:
        """Free rows if possible. They are not read again before others are written at their places."""

    def release_before(self, first_row: int) -> None:
        """Prepare for overwriting the rows with lower numbers than `first_row`."""

    def after_write(self, first_row: int, stop_row: int, next_place: int) -> None:
        """Note that the ring holds the rows `first_row` to `stop_row`, and writes the next row to `next_place`."""

    def flush(self, first_row: int, stop_row: int, next_place: int, closed: bool = False) -> None:
        """Make the rows of the ring durable. The arguments are those of `after_write`."""

    def close(self) -> None:
        """Release files and locks."""


class MemoryStorage(Storage):
    """Stores columns as arrays in memory."""

    def memory_bytes(self, row_bytes: int) -> int:
        return row_bytes

    def allocate(self, columns: Allocations, layout: RingLayout) -> dict[str, ColumnStore]:
        """Allocate arrays of zeros. The system provides their pages when they are first written."""
        return {
            name: as_column_store(np.zeros((places, *column.shape), column.dtype))
            for name, (column, places) in columns.items()
        }

    def grow(self, name: str, rows: ColumnStore, places: int) -> ColumnStore:
        return grow_array(rows, places)

    def load(self, store: ColumnStore, rows: Array, may_keep: bool) -> ColumnStore:
        """Keep the array if it is like that of the column, which spares a copy of all rows."""
        old = np.asarray(store)
        is_like = (rows.shape, rows.dtype, rows.strides) == (old.shape, old.dtype, old.strides)
        if may_keep and is_like and rows.flags.writeable:
            return as_column_store(rows)
        return super().load(store, rows, may_keep)


def grow_array(rows: ColumnStore, places: int) -> ColumnStore:
    """Copy an array to one with more places."""
    old = np.asarray(rows)
    require_memory(places * (old.nbytes // max(len(old), 1)))
    larger = np.zeros((places, *old.shape[1:]), old.dtype)
    larger[: len(old)] = old
    return as_column_store(larger)


def as_column_store(array: Array) -> ColumnStore:
    """Type an array as a column store. (Its `take` has more overloads than the protocol.)"""
    store: ColumnStore = array
    return store


def make_storage(storage: PartSpec | Storage | None) -> Storage:
    """Make the storage that a graph names; return one that is passed without a graph. The default is memory."""
    if isinstance(storage, PartSpec):
        made: Storage = storage.make()
        return made
    return MemoryStorage() if storage is None else storage
