"""Reads the arrays of a snapshot: several threads read their pieces, and check each while it is in the cache.

A piece is a file that has the SHA-256 of its bytes as its name. Computing that again would take longer than reading the
file, so the manifest also has a faster checksum of each piece. It is there to find damage: bytes that are missing,
zero, flipped, or those of another piece. Pieces without a checksum that this version of flowrl knows are checked by
their names.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from xxhash import xxh3_64

from flowrl.core.array_pieces import PIECE_BYTES
from flowrl.core.batch import Array

SMALL, PIECES = "small", "pieces"
READERS = 4  # threads that read pieces
SLICE_BYTES = 1 << 18  # that are read at once: they are still in the cache when they are summed
HASH = re.compile(r"[0-9a-f]{64}")
DTYPE = re.compile(r"[<>|=][biuf]\d{1,2}")


class Checksum(Protocol):
    """A checksum that is being computed, as those of `hashlib`."""

    def update(self, data: Any, /) -> None: ...

    def hexdigest(self) -> str: ...


CHECKSUM = "xxh3_64"  # the name of the checksums in a manifest


def sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def piece_checksum(content: memoryview) -> str:
    """Return the checksum of a piece for the manifest."""
    return xxh3_64(content).hexdigest()


@dataclass(frozen=True, slots=True)
class PieceReader:
    """Reads the texts and arrays of one snapshot, and raises ValueError if they are damaged."""

    pieces: Path  # the folder
    small: bytes
    checksums: Mapping[str, str]  # of pieces, by their names

    def text(self, piece: Sequence[Any]) -> str:
        """Return a text, after its hash has been checked."""
        sha, size, begin = piece
        content = self.small[int(begin) : int(begin) + int(size)]
        if len(content) != size or sha256(content) != sha:
            raise ValueError(f"{SMALL} is damaged: its bytes are not those that were written")
        return content.decode()

    def array(self, entry: Sequence[Any]) -> Array:
        """Return an array, whose pieces are read directly into its memory."""
        dtype, shape, parts = entry
        if not DTYPE.fullmatch(dtype):
            raise ValueError(f"{dtype!r:.40} is not the type of an array of numbers")
        sizes, wanted = [_size(piece) for piece in parts], [int(n) for n in shape]
        if sum(sizes) != np.dtype(dtype).itemsize * prod(wanted) or min(wanted, default=0) < 0:
            raise ValueError(f"an array of the shape {wanted} does not have {sum(sizes)} bytes")
        content = np.empty(sum(sizes), np.uint8)
        ends = np.cumsum(sizes).tolist()
        views = [content.data[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        if len(views) == 1:
            self._read_into(views[0], parts[0])
        else:
            with ThreadPoolExecutor(READERS) as pool:
                for _ in pool.map(self._read_into, views, parts):
                    pass  # raises the first error
        array: Array = content.view(np.dtype(dtype)).reshape(wanted)
        return array

    def _read_into(self, content: memoryview, piece: Sequence[Any]) -> None:
        """Read the bytes of a piece, and check them."""
        sha, size, *offset = piece
        if not (isinstance(sha, str) and HASH.fullmatch(sha)):
            raise ValueError(f"{sha!r:.80} is not the hash of a piece")
        if offset:
            where, found = SMALL, self.small[int(offset[0]) : int(offset[0]) + size]
            content[: len(found)] = found
            is_whole = len(found) == size and sha256(content) == sha
        else:
            where, is_whole = f"{PIECES}/{sha}", self._read_file(content, sha)
        if not is_whole:
            raise ValueError(f"{where} is damaged: its bytes are not those that were written")

    def _read_file(self, content: memoryview, sha: str) -> bool:
        """Read the file of a piece, and return whether its bytes are those that were written."""
        known = self.checksums.get(sha)
        checksum: Checksum = hashlib.sha256() if known is None else xxh3_64()
        with (self.pieces / sha).open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != len(content):
                return False
            for begin in range(0, len(content), SLICE_BYTES):
                part = content[begin : begin + SLICE_BYTES]
                if file.readinto(part) != len(part):
                    return False
                checksum.update(part)
        return checksum.hexdigest() == (sha if known is None else known)


def _size(piece: Sequence[Any]) -> int:
    size = piece[1]
    if not isinstance(size, int) or not 0 <= size <= PIECE_BYTES:
        raise ValueError(f"{size!r:.40} is not the size of a piece")
    return size
