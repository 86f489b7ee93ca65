"""Compressed storage: each row of a large column is packed by itself, so that any can be drawn alone."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.nodes.buffers.capacity import must_fit
from flowrl.nodes.buffers.storage import Places, Rows, Storage, Table, as_rows, grown

CHECK_BYTES = 64 << 20  # from one look at how much memory is free to the next
OBJECT_BYTES = 41  # that Python takes for a row, beside what is in it

Pack = Callable[[bytes], bytes]
Unpack = Callable[[bytes, int], bytes]  # takes the size that will come out, too


class Compressed(Storage):
    """In memory, compressed, without loss. Columns whose rows are small stay as they are."""

    class Config(BaseConfig):
        codec: Literal["auto", "lz4", "zlib"] = param(
            "auto", "auto: lz4 (pip install 'flowrl[fast]') where it is installed, else zlib"
        )
        least_row_bytes: int = param(256, "columns with smaller rows are not compressed", ge=1)

    def memory_bytes(self, full_bytes: int) -> int:
        """Nothing is known before; memory is watched while rows come."""
        return 0

    def allocate(self, columns: Places, table: Table) -> dict[str, Rows]:
        """Large columns packed, others as arrays."""
        plain = [c.row_bytes * n for c, n in columns.values() if not self._is_large(c)]
        must_fit(sum(plain))
        pack, unpack = codec(self.config.codec)
        return {
            name: Packed(column, places, pack, unpack)
            if self._is_large(column)
            else as_rows(column.empty(places))
            for name, (column, places) in columns.items()
        }

    def grow(self, name: str, rows: Rows, places: int) -> Rows:
        """More places."""
        if isinstance(rows, Packed):
            rows.grow(places)
            return rows
        return grown(rows, places)

    def forget(self, columns: Mapping[str, Rows], places: Array) -> None:
        """What is removed is freed."""
        for rows in columns.values():
            if isinstance(rows, Packed):
                rows.forget(places)

    def _is_large(self, column: Column) -> bool:
        return column.row_bytes >= self.config.least_row_bytes


class Packed:
    """Rows of one column, each in bytes of its own; None where there never was one."""

    def __init__(self, column: Column, places: int, pack: Pack, unpack: Unpack) -> None:
        self._dtype, self._shape = np.dtype(column.dtype), column.shape
        self._row_bytes = column.row_bytes
        self._pack, self._unpack = pack, unpack
        self._rows: list[bytes | None] = [None] * places
        self._packed_bytes = 0
        self._watched_bytes = 0  # when memory was looked at last

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of what is packed, and what Python takes for it."""
        return self._packed_bytes + len(self._rows) * 8

    def grow(self, places: int) -> None:
        """More places."""
        self._rows += [None] * (places - len(self._rows))

    def __setitem__(self, places: slice | Array, rows: Array, /) -> None:
        at = range(*places.indices(len(self._rows))) if isinstance(places, slice) else places
        raw, pack = np.ascontiguousarray(rows).reshape(-1).view(np.uint8), self._pack
        for place, row in zip(at, raw.reshape(len(rows), self._row_bytes), strict=True):
            packed, old = pack(row.tobytes()), self._rows[place]
            if len(packed) >= self._row_bytes:
                packed = row.tobytes()  # noise does not get smaller
            self._rows[place] = packed
            self._packed_bytes += _taken(packed) - _taken(old)
        if self._packed_bytes > self._watched_bytes + CHECK_BYTES:
            must_fit(2 * CHECK_BYTES)
            self._watched_bytes = self._packed_bytes

    def forget(self, places: Array) -> None:
        """Free what lies there."""
        for place in places.tolist():
            self._packed_bytes -= _taken(self._rows[place])
            self._rows[place] = None

    def take(self, places: Array, axis: int = 0, /, *, mode: str = "clip") -> Array:
        """These rows, unpacked."""
        out = np.empty((len(places), self._row_bytes), np.uint8)
        rows, size, unpack = self._rows, self._row_bytes, self._unpack
        for row, place in zip(out, places.tolist(), strict=True):
            packed = rows[place]
            if packed is None:
                row[:] = 0
                continue
            whole = packed if len(packed) == size else unpack(packed, size)
            row[:] = np.frombuffer(whole, np.uint8)
        return out.reshape(-1).view(self._dtype).reshape(len(places), *self._shape)


def _taken(packed: bytes | None) -> int:
    return 0 if packed is None else len(packed) + OBJECT_BYTES


def codec(name: str) -> tuple[Pack, Unpack]:
    """How rows are packed and unpacked."""
    lz4 = None if name == "zlib" else _lz4(must=name == "lz4")
    if lz4 is None:
        return lambda raw: zlib.compress(raw, 1), lambda packed, size: zlib.decompress(
            packed, bufsize=size
        )
    return lambda raw: lz4.compress(raw, store_size=False), lambda packed, size: lz4.decompress(
        packed, uncompressed_size=size
    )


def _lz4(must: bool) -> Any:
    try:
        return importlib.import_module("lz4.block")
    except ImportError as missing:
        if must:
            raise ImportError(
                "storage: `codec: lz4` needs lz4; pip install 'flowrl[fast]', or say `codec: zlib`"
            ) from missing
        return None
