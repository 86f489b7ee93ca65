"""Large arrays of a node's state, in pieces: a snapshot copies those that have changed since an earlier one.

A node that is asked for its state while `Context.reads_live_arrays` is set may return a `LiveArray` instead of a copy.
The engine copies its pieces between firings of the node: some ahead of a snapshot, and the others when the snapshot is
saved. The result is `ArrayPieces`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from flowrl.core.batch import Array

PIECE_BYTES = 1 << 22  # in which the bytes of arrays are copied, hashed and written to files
# Arrays from this size on are files of their own, and may have pieces missing.
LARGE_BYTES = 1 << 20
# Live arrays of a node that have more than this together are copied ahead of a snapshot, until so little is left.
REST_BYTES = 64 << 20
COPY_AHEAD_BYTES = 16 << 20  # that are copied between two firings


def pieces_of(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of an array in pieces, of which all but the last have `PIECE_BYTES`."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    for begin in range(0, max(len(flat), 1), PIECE_BYTES):
        yield flat[begin : begin + PIECE_BYTES]


def count_pieces(nbytes: int) -> int:
    """Return in how many pieces an array of this size is; an empty array is one empty piece."""
    return max(-(-nbytes // PIECE_BYTES), 1)


def piece_bounds(index: int, nbytes: int) -> tuple[int, int]:
    """Return where a piece of an array of this size begins and ends."""
    return index * PIECE_BYTES, min((index + 1) * PIECE_BYTES, nbytes)


@dataclass(frozen=True, slots=True)
class PieceVersion:
    """Says whether a piece has changed: two versions are equal only if the bytes are equal."""

    content: object  # the `LiveArray.content`, compared by identity
    nbytes: int
    number: int


@dataclass(frozen=True, slots=True)
class LiveArray:
    """An array that is read in slices of rows. The node that has it writes to it whenever it fires.

    `version(first, stop)` returns a number that no slice of rows had before if one of its rows was written since.
    This holds as long as `content` is the same object. Both functions may be called as long as the array exists, also
    when the node has another `content` by then.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[int, int], Array]  # may return a view
    version: Callable[[int, int], int]
    content: object

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape)

    @property
    def count(self) -> int:
        """The number of pieces."""
        return count_pieces(self.nbytes)

    def piece_versions(self) -> list[PieceVersion]:
        """Return the version of each piece."""
        return [self.piece_version(index) for index in range(self.count)]

    def piece_version(self, index: int) -> PieceVersion:
        begin, end = piece_bounds(index, self.nbytes)
        number = self.version(*self._rows_of(begin, end)) if end else 0
        return PieceVersion(self.content, end - begin, number)

    def copy_piece(self, index: int) -> Array:
        """Return a copy of the bytes of a piece."""
        begin, end = piece_bounds(index, self.nbytes)
        if not end:
            return np.empty(0, np.uint8)
        first, stop = self._rows_of(begin, end)
        rows = np.ascontiguousarray(self.read(first, stop)).reshape(-1).view(np.uint8)
        skipped = begin - first * self._row_bytes
        piece: Array = rows[skipped : skipped + end - begin].copy()
        return piece

    def copy(self) -> Array:
        """Return a copy of the whole array."""
        return np.array(self.read(0, self.shape[0]), self.dtype)

    @property
    def _row_bytes(self) -> int:
        return self.nbytes // max(self.shape[0], 1)

    def _rows_of(self, begin: int, end: int) -> tuple[int, int]:
        """Return the slice of rows in which these bytes are."""
        return begin // self._row_bytes, -(-end // self._row_bytes)


@dataclass(frozen=True, slots=True)
class ArrayPieces:
    """An array as a snapshot has it. Pieces that did not change since they were stored are named by their hashes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Mapping[int, Array]  # bytes by index
    stored: Mapping[int, str]  # by index: the SHA-256 of the pieces that are stored already

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape)

    @property
    def count(self) -> int:
        """The number of pieces, missing ones included."""
        return count_pieces(self.nbytes)

    def joined(self) -> Array:
        """Return the array; raise ValueError if a piece is missing."""
        missing = [index for index in range(self.count) if index not in self.pieces]
        if missing:
            raise ValueError(
                f"{len(missing)} of {self.count} pieces are only among those that were stored before"
            )
        content = np.concatenate([self.pieces[index] for index in range(self.count)])
        return content.view(self.dtype).reshape(self.shape)
