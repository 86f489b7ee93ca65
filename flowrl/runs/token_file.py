"""The file of a run's token hashes: `tokens.bin`, in the order of the serial program and equal in every placement.

It is a sequence of msgpack values. The first one lists the replica pairs of all edges. Each later one is the hash of
one token or state version: position, number of the replica pair, version and digest, about 20 bytes in all.
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

TOKEN_FILE = "tokens.bin"
FORMAT = 1
READ_BYTES = 1 << 16


class NamedPair(NamedTuple):
    """A replica pair of an edge, as the file names it."""

    name: str
    producer: str  # the instance
    consumer: str
    kind: str


def named_pairs(graph: Graph) -> list[NamedPair]:
    """The replica pairs of a graph, in the order of their numbers."""
    return [
        NamedPair(pair_label(edge, pair), *pair_endpoints(edge, pair), edge.kind)
        for edge in graph.edges
        if edge.kind != "link"
        for pair in replica_pairs_of(graph, edge)
    ]


class TokenWriter:
    """Writes hashes, which must come in the order of the serial program."""

    def __init__(self, file: BinaryIO, graph: Graph) -> None:
        """`file` is open for appending. An empty one gets its first value."""
        self._file = file
        self._pack = msgpack.Packer().pack
        if file.tell():
            return
        pairs = [list(pair) for pair in named_pairs(graph)]
        self._file.write(self._pack([FORMAT, graph.seed, pairs]))

    def write(self, hashed: TokenHash) -> None:
        position, pair, version, digest = hashed[:4]
        self._file.write(self._pack([list(position), pair, version, digest]))


class TokenReader:
    """Iterates over the hashes in a run's folder, without reading the whole file at once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TOKEN_FILE
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read: {error.strerror}") from None
        self._unpacker = msgpack.Unpacker(self._file, read_size=READ_BYTES)
        try:
            self.seed, self.pairs = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> tuple[int, list[NamedPair]]:
        try:
            header: Any = self._read_next()
            format, seed, pairs = header
            if format != FORMAT:
                raise ValueError(f"format {format}")
            return seed, [NamedPair(*pair) for pair in pairs]
        except (TypeError, ValueError) as error:
            what = f"{self.path}: is not a file of token hashes that this version can read"
            raise RunError(f"{what} ({error})") from None

    def _read_next(self) -> list[Any] | None:
        try:
            found: list[Any] = self._unpacker.unpack()
        except msgpack.OutOfData:
            return None  # the end of the file, or an incomplete last value
        except (ValueError, msgpack.UnpackException) as error:
            raise RunError(f"{self.path}: is damaged: {error}") from error
        return found

    def __iter__(self) -> Iterator[TokenHash]:
        while (row := self._read_next()) is not None:
            position, pair, version, digest = row
            yield TokenHash(tuple(position), pair, version, digest)

    def close(self) -> None:
        self._file.close()
