"""Batches: tables as a struct of arrays, whose schema is known before the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from flowrl.core.errors import shortened_repr

Array = npt.NDArray[Any]
ALIGNMENT_BYTES = 16  # numpy's own arrays begin at multiples of this
Bound = float | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its dtype and the shape of a row.

    `n` is the number of values of a discrete column; `low` and `high` are bounds. With `frames`, a row holds this many
    frames of one episode, the oldest first, and consecutive rows share frames. Each number of a column of rewards sums
    `sums` rewards, or fewer at the end of an episode; None: it is one reward. A column of discounts was computed with
    `gamma` for each step; None: it is not known.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    n: int | None = field(default=None, compare=False)
    low: Bound = field(default=None, compare=False)
    high: Bound = field(default=None, compare=False)
    frames: int | None = field(default=None, compare=False)
    sums: int | None = field(default=None, compare=False)
    gamma: float | None = field(default=None, compare=False)

    @property
    def row_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize * np.prod(self.shape, dtype=np.int64))

    def empty(self, *rows: int) -> Array:
        """Return an uninitialised array of this column with the given leading dimensions."""
        return np.empty((*rows, *self.shape), self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]" if self.shape else self.dtype


Schema = Mapping[str, Column]


def row_bytes(schema: Schema) -> int:
    """Return the bytes of one row."""
    return sum(column.row_bytes for column in schema.values())


def starts_aligned(array: Array) -> bool:
    """Return whether the memory begins at an address at which numpy's own arrays begin."""
    return bool(array.ctypes.data % ALIGNMENT_BYTES == 0)


def is_aligned(array: Array) -> bool:
    """Return whether an array is contiguous and aligned, as it is after it was received from another site.

    The order of sums and the instructions of products depend on gaps and on alignment. So without this rule the bits
    of a result would depend on the site on which an array was made.
    """
    flags = array.flags
    whole: bool = flags.forc
    return whole and (flags.owndata or array.dtype.kind != "f" or starts_aligned(array))


def _split_column(array: Array, count: int, rows: int) -> list[Array]:
    """Cut a read-only, aligned column into read-only, aligned parts."""
    bytes_of_part = array.nbytes // count
    if array.flags.c_contiguous and (
        array.dtype.kind != "f" or not bytes_of_part % ALIGNMENT_BYTES
    ):
        return list(array.reshape(count, rows, *array.shape[1:]))
    parts = [array[k * rows : (k + 1) * rows].copy(order="K") for k in range(count)]
    for part in parts:
        part.flags.writeable = False
    return parts


Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]  # columns by name, or a list of rows


class Batch:
    """An immutable table: named columns with one leading dimension."""

    __slots__ = ("_columns", "rows")

    def __init__(self, columns: Mapping[str, Array]) -> None:
        """The arrays become read-only. Views that are not contiguous and aligned are copied."""
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
        """The arrays by name. The mapping must not be changed."""
        return self._columns

    @property
    def schema(self) -> Schema:
        return {k: Column(str(a.dtype), a.shape[1:]) for k, a in self._columns.items()}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._columns.values())

    def take(self, index: Any) -> Batch:
        """Return the rows at `index`: views for a slice, copies for an integer array."""
        return Batch({name: array[index] for name, array in self._columns.items()})

    def split(self, count: int) -> list[Batch]:
        """Return `count` tables of equally many rows, in order; their arrays are views, as far as those are aligned."""
        rows, rest = divmod(len(self), count)
        if rest:
            raise ValueError(f"{len(self)} rows cannot be split into {count} equal parts")
        if count == 1:
            return [self]
        columns = [_split_column(array, count, rows) for array in self._columns.values()]
        return [self._with_arrays(parts, rows) for parts in zip(*columns, strict=True)]

    def _with_arrays(self, arrays: Sequence[Array], rows: int) -> Batch:
        """Return a table of other rows of the same columns, which are read-only and aligned already."""
        made = Batch.__new__(Batch)
        made._columns, made.rows = dict(zip(self._columns, arrays, strict=True)), rows
        return made

    def only(self, names: Iterable[str]) -> Batch:
        """Return a table of the named columns."""
        return Batch({name: self[name] for name in names})

    def replace(self, **columns: Array) -> Batch:
        """Return the table with some columns replaced or added."""
        return Batch({**self._columns, **columns})

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows as a list of dicts, with read-only views of the arrays: `from_rows` is the inverse."""
        return [{name: a[k] for name, a in self._columns.items()} for k in range(len(self))]

    @staticmethod
    def from_rows(rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Return the table of a list of rows. They are copied, and float64 becomes float32, as in values of envs."""
        return as_batch("Batch.from_rows", rows)

    @staticmethod
    def concat(batches: Sequence[Batch]) -> Batch:
        """Return the rows of all batches, in order."""
        if len(batches) == 1:
            return batches[0]
        names = list(batches[0])
        for other in batches[1:]:
            if set(other) != set(names):
                raise ValueError(f"columns differ: {sorted(names)} and {sorted(other)}")
        return Batch({n: np.concatenate([b[n] for b in batches]) for n in names})


def as_batch(where: str, data: Batch | Rows) -> Batch:
    """Return data that was given by hand as a batch: a batch itself, columns by name, or a list of rows.

    Columns and rows are copied, and float64 becomes float32, as in the values of envs.
    """
    if isinstance(data, Batch):
        return data
    if isinstance(data, Mapping):
        return Batch({name: _column(where, name, column) for name, column in data.items()})
    if not (isinstance(data, list | tuple) and data and all(isinstance(r, Mapping) for r in data)):
        raise TypeError(
            f"{where}: {shortened_repr(data)} is not a batch; expected a Batch, columns by name "
            "({'obs': array, …}), or a list of rows ([{'obs': …, 'action': …}, …])"
        )
    for k, row in enumerate(data):
        if row.keys() != data[0].keys():
            raise ValueError(
                f"{where}: row {k} has {', '.join(row)}; expected {', '.join(data[0])}, as in row 0"
            )
    return Batch({name: _column(where, name, [row[name] for row in data]) for name in data[0]})


def _column(where: str, name: str, values: Any) -> Array:
    try:
        array = np.array(values)
    except ValueError:  # the rows differ in shape
        array = np.array(None)
    if array.dtype.kind not in "biufSU" or not array.ndim:
        raise ValueError(
            f"{where}: the column '{name}' is {shortened_repr(values)}; expected numbers, in the same shape in each row"
        )
    return array.astype(np.float32) if array.dtype == np.float64 else array
