"""The file of a run's token hashes: `tokens.bin`, in the order of the program.

First a list that says what the ways are, then for each token or version a list of position, way, version and digest:
all in msgpack, about 20 bytes each. It is the same in every placement.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgpack

from flowrl.core.errors import RunError
from flowrl.graph.model import Graph
from flowrl.graph.replica_pairs import pair_endpoints, pair_label, replica_pairs_of
from flowrl.runtime.token_hashing import TokenHash

NAME = "tokens.bin"
FORMAT = 1
PIECE_BYTES = 1 << 16


class Way(NamedTuple):
    """A way, as the file names it."""

    name: str
    gives: str  # the instance
    takes: str
    kind: str


def ways_in(graph: Graph) -> list[Way]:
    """The ways of a graph, in the order of their numbers."""
    return [
        Way(pair_label(edge, lane), *pair_endpoints(edge, lane), edge.kind)
        for edge in graph.edges
        if edge.kind != "link"
        for lane in replica_pairs_of(graph, edge)
    ]


class TokenWriter:
    """Writes hashes as they come; what comes must be in the order of the program."""

    def __init__(self, file: BinaryIO, graph: Graph) -> None:
        self._file = file
        self._pack = msgpack.Packer().pack
        self._file.write(self._pack([FORMAT, graph.seed, [list(way) for way in ways_in(graph)]]))

    def write(self, hashed: TokenHash) -> None:
        """One more."""
        self._file.write(self._pack([list(hashed.position), *hashed[1:]]))


class Tokens:
    """What a run has written, read piece by piece."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read: {error.strerror}") from None
        self._unpacker = msgpack.Unpacker(self._file, read_size=PIECE_BYTES)
        try:
            self.seed, self.ways = self._head()
        except BaseException:
            self._file.close()
            raise

    def _head(self) -> tuple[int, list[Way]]:
        try:
            head: Any = self._next()
            kind, seed, ways = head
            if kind != FORMAT:
                raise ValueError(f"format {kind}")
            return seed, [Way(*way) for way in ways]
        except (TypeError, ValueError) as error:
            what = f"{self.path}: is no file of token hashes that this version reads"
            raise RunError(f"{what} ({error})") from None

    def _next(self) -> list[Any] | None:
        try:
            found: list[Any] = self._unpacker.unpack()
        except msgpack.OutOfData:
            return None  # the end; a last one may be cut short
        except (ValueError, msgpack.UnpackException) as error:
            raise RunError(f"{self.path}: is damaged: {error}") from error
        return found

    def __iter__(self) -> Iterator[TokenHash]:
        while (row := self._next()) is not None:
            position, way, version, digest = row
            yield TokenHash(tuple(position), way, version, digest)

    def close(self) -> None:
        """Read no more."""
        self._file.close()
