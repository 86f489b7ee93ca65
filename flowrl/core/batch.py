"""Columns: what a table token holds. A batch is a struct of arrays, its schema is known before the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ALIGNMENT_BYTES = 16  # bytes: where numpy's own memory begins
Bound = float | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: dtype and the shape of a row; `n` counts a discrete column's values, `low`/`high` bound it.

    `frames` says that a row is so many frames of one episode, the oldest first, which rows that follow share.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    n: int | None = field(default=None, compare=False)
    low: Bound = field(default=None, compare=False)
    high: Bound = field(default=None, compare=False)
    frames: int | None = field(default=None, compare=False)

    @property
    def row_bytes(self) -> int:
        """Bytes that one row of this column takes."""
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    def empty(self, *rows: int) -> Array:
        """An uninitialised array of this column with the given leading dimensions."""
        return np.empty((*rows, *self.shape), self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]" if self.shape else self.dtype


Schema = Mapping[str, Column]


def row_bytes(schema: Schema) -> int:
    """Bytes that one row of a schema takes."""
    return sum(column.row_bytes for column in schema.values())


def starts_aligned(array: Array) -> bool:
    """Whether its memory begins where an array's own does."""
    return bool(array.ctypes.data % ALIGNMENT_BYTES == 0)


def is_aligned(array: Array) -> bool:
    """Whether an array lies in memory as one that came from another site does.

    Where there are gaps, or memory begins elsewhere, numbers are added and products computed in another order: bits
    would tell where the array was made.
    """
    flags = array.flags
    whole: bool = flags.forc
    return whole and (flags.owndata or array.dtype.kind != "f" or starts_aligned(array))


class Batch:
    """An immutable table: named columns with one leading dimension."""

    __slots__ = ("_columns", "rows")

    def __init__(self, columns: Mapping[str, Array]) -> None:
        """Takes the arrays over: they become read-only. Views with gaps, or that begin unevenly, are copied."""
        self._columns = dict(columns)
        rows = -1
        for name, array in self._columns.items():
            if rows != len(array):
                if rows >= 0:
                    raise ValueError(
                        f"column '{name}' has {len(array)} rows; the others have {rows}"
                    )
                rows = len(array)
            if not is_aligned(array):
                array = self._columns[name] = array.copy(order="K")
            array.flags.writeable = False
        self.rows = max(rows, 0)

    def __getitem__(self, name: str) -> Array:
        try:
            return self._columns[name]
        except KeyError:
            raise KeyError(f"no column '{name}'; there are {', '.join(self._columns)}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {column}" for name, column in self.schema.items())
        return f"Batch({self.rows} rows; {columns})"

    @property
    def columns(self) -> Mapping[str, Array]:
        """The arrays by name (do not change the mapping)."""
        return self._columns

    @property
    def schema(self) -> Schema:
        """The columns' dtypes and shapes."""
        return {k: Column(str(a.dtype), a.shape[1:]) for k, a in self._columns.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(array.nbytes for array in self._columns.values())

    def take(self, index: Any) -> Batch:
        """The rows at `index` (a slice gives views, an integer array one gather a column)."""
        return Batch({name: array[index] for name, array in self._columns.items()})

    def only(self, names: Iterable[str]) -> Batch:
        """The named columns."""
        return Batch({name: self[name] for name in names})

    def replace(self, **columns: Array) -> Batch:
        """The same table with some columns replaced or added."""
        return Batch({**self._columns, **columns})

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """The rows of all, in order: one concatenation a column."""
        if len(batches) == 1:
            return batches[0]
        names = list(batches[0])
        for other in batches[1:]:
            if set(other) != set(names):
                raise ValueError(f"columns differ: {sorted(names)} and {sorted(other)}")
        return Batch({n: np.concatenate([b[n] for b in batches]) for n in names})
