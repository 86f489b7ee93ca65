"""One column in a file: written by `pwrite`, read through a map of it."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Literal

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.buffers.capacity import available_bytes, take_from_disk

MOST_BYTES = 1 << 30  # of one write: the system takes no more than 2 GiB


class MappedRows:
    """Rows of a column, in a file that holds nothing else.

    Writing through the map would first read every page from the disk, and end the process where
    the disk fails; `pwrite` does neither, and the map sees at once what it has written.
    """

    def __init__(self, path: Path, column: Column, places: int, new: bool = True) -> None:
        """Make a file of so many places; or open one, which may have got more of them."""
        self._path, self._column = path, column
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if new else 0)
        self._file = os.open(path, flags, 0o644)
        try:
            length = os.fstat(self._file).st_size
            if not new and length < places * column.row_bytes:
                raise ValueError(f"'{path}' has lost its end: it was changed by another program")
            self.grow(places)
        except BaseException:
            os.close(self._file)
            raise

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self._rows.nbytes

    def grow(self, places: int) -> None:
        """At least so many places, all of them on the disk: a full disk is an error now."""
        row_bytes = max(self._column.row_bytes, 1)
        wanted = max(places * row_bytes, 1)
        if os.fstat(self._file).st_size < wanted:
            take_from_disk(self._file, self._path, wanted)
        length = os.fstat(self._file).st_size
        mapped = self._map = mmap.mmap(self._file, length, prot=mmap.PROT_READ)
        mapped.madvise(mmap.MADV_RANDOM)  # rows are drawn from anywhere
        free = available_bytes()
        self._cold = free is not None and length > free // 2
        count = length // row_bytes if self._column.row_bytes else places
        flat = np.frombuffer(mapped, np.uint8, count * self._column.row_bytes)
        self._rows: Array = flat.view(self._column.dtype).reshape(count, *self._column.shape)

    def __setitem__(self, places: slice | Array, rows: Array, /) -> None:
        """Rows that follow each other are written together."""
        if isinstance(places, slice):
            self._write(places.start, rows)
            return
        breaks = np.flatnonzero(np.diff(places) != 1) + 1
        for at, part in zip(np.split(places, breaks), np.split(rows, breaks), strict=True):
            if len(at):
                self._write(int(at[0]), part)

    def take(self, places: Array, axis: int = 0, /, *, mode: Literal["clip"] = "clip") -> Array:
        """One gather. The disk is told of all rows first: it reads them together, not one by one."""
        if self._cold:
            size = self._column.row_bytes
            for begin in (places * size).tolist():
                page = begin - begin % mmap.PAGESIZE
                self._map.madvise(mmap.MADV_WILLNEED, page, begin + size - page)
        return self._rows.take(places, 0, mode=mode)

    def flush(self) -> None:
        """Wait until all that was written is on the disk."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """Let go of the file; arrays that were taken are copies."""
        os.close(self._file)

    def _write(self, place: int, rows: Array) -> None:
        left = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        at = place * self._column.row_bytes
        while len(left):
            done = os.pwrite(self._file, left[:MOST_BYTES], at)
            left, at = left[done:], at + done
