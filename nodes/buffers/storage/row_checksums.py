"""Checksums of the rows of a column, by which rows that changed on the disk are found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flowrl.core.batch import Array

WORDS = (np.uint64, np.uint32, np.uint16, np.uint8)
BLOCK_BYTES = 1 << 22  # of the rows that are summed at once


def widest_word(nbytes: int) -> type[np.unsignedinteger]:
    """Return the widest unsigned integer of which this many bytes consist."""
    return next(word for word in WORDS if nbytes % np.dtype(word).itemsize == 0)


def blocks_of(first: int, stop: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Divide a range of rows into ranges of about `BLOCK_BYTES`."""
    rows = max(BLOCK_BYTES // max(row_bytes, 1), 1)
    for begin in range(first, stop, rows):
        yield begin, min(begin + rows, stop)


class RowChecksum:
    """Sums the words of a row, each multiplied by a fixed odd number, modulo 2^64.

    A product loses the highest bits of its word: without more, two flips of the highest bit would cancel out. So the
    upper half of a word of 64 bits is first added to its lower half, without carry. A row in which one word changed
    always has another sum, and any other change is missed with a chance of about 2^-32. The sum of zeros is not zero.
    """

    def __init__(self, row_bytes: int) -> None:
        self._word = widest_word(row_bytes)
        words = row_bytes // np.dtype(self._word).itemsize
        # The raw numbers of a bit generator never change with numpy's version.
        raw = np.random.PCG64(0x666C6F77).random_raw(words + 1)
        self._factors = raw[:words] | np.uint64(1)
        self._base = raw[words] | np.uint64(1)

    def of(self, rows: Array) -> Array:
        """Return the checksums (n,) of rows (n, …)."""
        flat = np.ascontiguousarray(rows).reshape(-1).view(self._word)
        words = flat.reshape(len(rows), len(self._factors)).astype(np.uint64, copy=False)
        if self._word is np.uint64:
            upper = words >> np.uint64(32)
            words = np.bitwise_xor(words, upper, out=upper)
        sums: Array = np.einsum("ij,j->i", words, self._factors) + self._base
        return sums
