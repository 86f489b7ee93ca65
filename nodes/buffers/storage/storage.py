"""The interface between a ring and the medium that keeps its columns, and the default medium: arrays in memory."""

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

Allocations = Mapping[str, tuple[Column, int]]  # of each column its type and its number of places


class ColumnStore(Protocol):
    """The rows of one column: the part of an array's interface that a ring uses."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """The bytes that the rows take in their medium."""

    def __setitem__(self, places: Any, rows: Array, /) -> None:
        """Write rows at a slice or an array of places."""

    def take(self, places: Array, axis: int, /, *, mode: Literal["clip"]) -> Array:
        """The rows at these places. `axis` is 0, and every place exists."""


@dataclass(frozen=True, slots=True)
class RingLayout:
    """What a ring stores: the columns as they are pushed, and how their frames are deduplicated."""

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
    """A kind of storage. One object keeps the columns of one ring.

    The kind decides only where the bytes are. It never changes what is drawn.
    """

    kind = "storage"
    # True where the rows outlive the process. Only then are `release_before` and `after_write` called.
    persistent: ClassVar[bool] = False

    @property
    def nondeterministic(self) -> str:
        """Why two runs may differ; empty where they do not."""
        return ""

    def memory_bytes(self, row_bytes: int) -> int:
        """The memory that rows of so many bytes in total will take here, as far as it is known in advance."""
        raise NotImplementedError

    def bind(self, ctx: Context) -> None:
        """Take what is needed from the context of the buffer. A node calls this first."""

    def recover(self) -> RecoveredRows | None:
        """Open the rows that an earlier process left, if there are any."""
        return None

    def allocate(self, columns: Allocations, layout: RingLayout) -> dict[str, ColumnStore]:
        """Allocate all columns. Called once, and only where `recover` found nothing."""
        raise NotImplementedError

    def grow(self, name: str, rows: ColumnStore, places: int) -> ColumnStore:
        """Give a column more places. Each row keeps its place."""
        raise NotImplementedError

    def discard(self, columns: Mapping[str, ColumnStore], places: Array) -> None:
        """The rows at these places are not read until others are written there; free what can be freed."""

    def release_before(self, first_row: int) -> None:
        """Rows with lower numbers than `first_row` are about to be overwritten."""

    def after_write(self, first_row: int, stop_row: int, next_place: int) -> None:
        """The ring now holds rows `first_row` to `stop_row`; the next row goes to `next_place`."""

    def flush(self, first_row: int, stop_row: int, next_place: int, closed: bool = False) -> None:
        """Make the rows that the ring holds durable. Arguments as for `after_write`."""

    def close(self) -> None:
        """Release files and locks."""


class MemoryStorage(Storage):
    """Keeps columns as arrays in memory."""

    def memory_bytes(self, row_bytes: int) -> int:
        return row_bytes

    def allocate(self, columns: Allocations, layout: RingLayout) -> dict[str, ColumnStore]:
        """Allocate uninitialised arrays: the system provides their pages when they are first written."""
        return {
            name: as_column_store(column.empty(places))
            for name, (column, places) in columns.items()
        }

    def grow(self, name: str, rows: ColumnStore, places: int) -> ColumnStore:
        return grow_array(rows, places)


def grow_array(rows: ColumnStore, places: int) -> ColumnStore:
    """A copy of an array with more places."""
    old = np.asarray(rows)
    require_memory(places * (old.nbytes // max(len(old), 1)))
    larger = np.empty((places, *old.shape[1:]), old.dtype)
    larger[: len(old)] = old
    return as_column_store(larger)


def as_column_store(array: Array) -> ColumnStore:
    """An array, typed as a column store (its `take` has more overloads than the protocol)."""
    store: ColumnStore = array
    return store


def make_storage(storage: PartSpec | Storage | None) -> Storage:
    """The storage of a buffer's parameter: made from the graph's, or given by hand, or memory by default."""
    if isinstance(storage, PartSpec):
        made: Storage = storage.make()
        return made
    return MemoryStorage() if storage is None else storage
