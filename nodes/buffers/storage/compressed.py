"""Compressed storage: each row of a large column is compressed separately, so that rows can be drawn singly."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.nodes.buffers.storage.limits import require_memory
from flowrl.nodes.buffers.storage.storage import (
    Allocations,
    ColumnStore,
    RingLayout,
    Storage,
    as_column_store,
    grow_array,
)

CHECK_BYTES = 64 << 20  # growth from one check of the free memory to the next
OBJECT_BYTES = 41  # the overhead of a bytes object and its slot in a list

CompressRow = Callable[[bytes], bytes]
DecompressRow = Callable[[bytes, int], bytes]  # the second argument is the decompressed size


class CompressedStorage(Storage):
    """Stores columns in memory, compressed without loss. Columns with small rows stay arrays."""

    frees_rows: ClassVar[bool] = True

    class Config(BaseConfig):
        codec: Literal["auto", "lz4", "zlib"] = param(
            "auto", "auto: lz4 if it is installed (pip install 'flowrl[fast]'), else zlib"
        )
        least_row_bytes: int = param(256, "columns with smaller rows are not compressed", ge=1)

    def memory_bytes(self, row_bytes: int) -> int:
        """Return 0: the compressed size is not known in advance. Free memory is checked while rows arrive."""
        return 0

    def allocate(self, columns: Allocations, layout: RingLayout) -> dict[str, ColumnStore]:
        plain = [c.row_bytes * n for c, n in columns.values() if not self._is_large(c)]
        require_memory(sum(plain))
        compress, decompress = row_codec(self.config.codec)
        return {
            name: CompressedColumn(column, places, compress, decompress)
            if self._is_large(column)
            else as_column_store(np.zeros((places, *column.shape), column.dtype))
            for name, (column, places) in columns.items()
        }

    def grow(self, name: str, rows: ColumnStore, places: int) -> ColumnStore:
        if isinstance(rows, CompressedColumn):
            rows.grow(places)
            return rows
        return grow_array(rows, places)

    def discard(self, columns: Mapping[str, ColumnStore], places: Array) -> None:
        for rows in columns.values():
            if isinstance(rows, CompressedColumn):
                rows.discard(places)

    def _is_large(self, column: Column) -> bool:
        return column.row_bytes >= self.config.least_row_bytes


class CompressedColumn:
    """The rows of one column, each a bytes object, or None at places without a row."""

    def __init__(
        self, column: Column, places: int, compress: CompressRow, decompress: DecompressRow
    ) -> None:
        self._dtype, self._shape = np.dtype(column.dtype), column.shape
        self._row_bytes = column.row_bytes
        self._compress, self._decompress = compress, decompress
        self._rows: list[bytes | None] = [None] * places
        self._compressed_bytes = 0
        self._checked_bytes = 0  # the size at the last check of the free memory

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """The bytes of the compressed rows, with Python's overhead."""
        return self._compressed_bytes + len(self._rows) * 8

    def grow(self, places: int) -> None:
        self._rows += [None] * (places - len(self._rows))

    def __getitem__(self, places: slice, /) -> Array:
        return self.take(np.arange(*places.indices(len(self._rows))))

    def __setitem__(self, places: slice | Array, rows: Array, /) -> None:
        indices = range(*places.indices(len(self._rows))) if isinstance(places, slice) else places
        raw, compress = np.ascontiguousarray(rows).reshape(-1).view(np.uint8), self._compress
        for place, row in zip(indices, raw.reshape(len(rows), self._row_bytes), strict=True):
            compressed, replaced = compress(row.tobytes()), self._rows[place]
            if len(compressed) >= self._row_bytes:
                compressed = row.tobytes()  # random data cannot be compressed
            self._rows[place] = compressed
            self._compressed_bytes += _memory_of(compressed) - _memory_of(replaced)
        if self._compressed_bytes > self._checked_bytes + CHECK_BYTES:
            require_memory(2 * CHECK_BYTES)
            self._checked_bytes = self._compressed_bytes

    def discard(self, places: Array) -> None:
        """Free the rows at these places."""
        for place in places.tolist():
            self._compressed_bytes -= _memory_of(self._rows[place])
            self._rows[place] = None

    def take(self, places: Array, axis: int = 0, /, *, mode: str = "clip") -> Array:
        """Decompress rows into one array."""
        out = np.empty((len(places), self._row_bytes), np.uint8)
        rows, size, decompress = self._rows, self._row_bytes, self._decompress
        for row, place in zip(out, places.tolist(), strict=True):
            compressed = rows[place]
            if compressed is None:
                row[:] = 0
                continue
            raw = compressed if len(compressed) == size else decompress(compressed, size)
            row[:] = np.frombuffer(raw, np.uint8)
        return out.reshape(-1).view(self._dtype).reshape(len(places), *self._shape)


def _memory_of(compressed: bytes | None) -> int:
    return 0 if compressed is None else len(compressed) + OBJECT_BYTES


def row_codec(name: str) -> tuple[CompressRow, DecompressRow]:
    """Return the functions that compress and decompress a row."""
    lz4 = None if name == "zlib" else _import_lz4(required=name == "lz4")
    if lz4 is None:
        return lambda raw: zlib.compress(raw, 1), lambda compressed, size: zlib.decompress(
            compressed, bufsize=size
        )
    return lambda raw: lz4.compress(raw, store_size=False), lambda compressed, size: lz4.decompress(
        compressed, uncompressed_size=size
    )


def _import_lz4(required: bool) -> Any:
    try:
        return importlib.import_module("lz4.block")
    except ImportError as missing:
        if required:
            raise ImportError(
                "storage: `codec: lz4` requires lz4; "
                "run pip install 'flowrl[fast]', or write `codec: zlib`"
            ) from missing
        return None
