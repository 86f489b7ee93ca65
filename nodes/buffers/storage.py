"""Where a ring's columns are kept: what a kind of storage must do, and the plain one, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import Part, PartSpec
from flowrl.core.context import Context
from flowrl.nodes.buffers.capacity import must_fit
from flowrl.nodes.buffers.commits import Claim

Places = Mapping[str, tuple[Column, int]]  # of each column what it is, and how many places


class Rows(Protocol):
    """What a ring does with a column: as much as it needs of an array."""

    def __len__(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """What they take, of whatever they are kept in."""

    def __setitem__(self, places: Any, rows: Array, /) -> None:
        """Write rows at a slice of places, or at an array of them."""

    def take(self, places: Array, axis: int, /, *, mode: Literal["clip"]) -> Array:
        """The rows at these places: axis 0, and no place lies outside."""


@dataclass(frozen=True, slots=True)
class Table:
    """What a ring holds: its columns as they are given, and how observations are stored once."""

    schema: Schema
    size: int  # rows
    frames: Mapping[str, int] | None  # of how many frames each observation consists


@dataclass(frozen=True, slots=True)
class Found:
    """What an earlier process has left."""

    table: Table
    columns: dict[str, Rows]
    claim: Claim
    report: str  # for people


class Storage(Part):
    """A kind of storage. One object keeps one ring's columns.

    Nothing that is drawn or given depends on the kind: only where the bytes lie.
    """

    kind = "storage"
    keeps: ClassVar[bool] = False  # what is stored outlives the process

    @property
    def nondeterministic(self) -> str:
        """Why two runs may differ, if they may."""
        return ""

    def memory_bytes(self, full_bytes: int) -> int:
        """Memory that rows of so many bytes will take here, as far as that is known before."""
        raise NotImplementedError

    def belongs_to(self, ctx: Context) -> None:
        """Told by a node, before all else."""

    def open(self) -> Found | None:
        """What is there already."""
        return None

    def allocate(self, columns: Places, table: Table) -> dict[str, Rows]:
        """Places for all columns; called once, where nothing was there."""
        raise NotImplementedError

    def grow(self, name: str, rows: Rows, places: int) -> Rows:
        """More places for a column; each row stays at its place."""
        raise NotImplementedError

    def forget(self, columns: Mapping[str, Rows], places: Array) -> None:
        """The rows at these places will not be asked for until others are written there."""

    def leave(self, first: int) -> None:
        """Rows with lower numbers than this will be overwritten (where `keeps`)."""

    def wrote(self, first: int, stop: int, place: int) -> None:
        """Rows of these numbers are held now, and the next one goes to `place` (where `keeps`)."""

    def flush(self, first: int, stop: int, place: int, closed: bool = False) -> None:
        """The same, and they must never be lost."""

    def close(self) -> None:
        """Give back what is not memory."""


class Memory(Storage):
    """Arrays."""

    def memory_bytes(self, full_bytes: int) -> int:
        """All of it."""
        return full_bytes

    def allocate(self, columns: Places, table: Table) -> dict[str, Rows]:
        """Arrays that nothing is written to: pages that are not used are not taken."""
        return {name: as_rows(column.empty(places)) for name, (column, places) in columns.items()}

    def grow(self, name: str, rows: Rows, places: int) -> Rows:
        """A larger array, and a copy."""
        return grown(rows, places)


def grown(rows: Rows, places: int) -> Rows:
    """A larger array, with these rows in it."""
    old = np.asarray(rows)
    must_fit(places * (old.nbytes // max(len(old), 1)))
    larger = np.empty((places, *old.shape[1:]), old.dtype)
    larger[: len(old)] = old
    return as_rows(larger)


def as_rows(array: Array) -> Rows:
    """An array has all that is asked of rows."""
    found: Rows = array
    return found


def storage_of(given: PartSpec | Storage | None) -> Storage:
    """The storage that a buffer's parameter names: of a graph, given by hand, or none, which is memory."""
    if isinstance(given, PartSpec):
        made: Storage = given.make()
        return made
    return Memory() if given is None else given
