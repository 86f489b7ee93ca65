"""Tapes: files with the tokens of some edges of a run, or with the last firing of a node that failed.

A tape begins with a line that names its format. Frames follow, each with its length and its CRC-32: the facts as JSON,
the parts of the snapshot with which the recording began, the tokens in the order of the serial program, and the end. A
tape is written as the run goes on, so the tape of a run that was killed lacks its end. It is equal in every placement.
Nothing in a tape is executed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import msgpack

from flowrl.core.errors import RunError, UsageError
from flowrl.core.json_text import parse_object
from flowrl.core.saved_state import SavedState
from flowrl.graph.loading import load_text
from flowrl.graph.model import Graph
from flowrl.runs.token_file import NamedPair
from flowrl.runtime.snapshot import Parts
from flowrl.runtime.token_contents import decode_value, encode_value
from flowrl.runtime.token_hashing import TokenHash

FORMAT = b"flowrl tape 1\n"
FRAME = struct.Struct("<QI")  # the length and the CRC-32 of what follows
MAX_FACTS_BYTES = 64 << 20
FACTS, PART, TOKEN, INPUT, END = "facts", "part", "token", "input", "end"  # kinds of frames

Frame = list[Any]


@dataclass(frozen=True, slots=True)
class TapeFacts:
    """What a tape is of."""

    graph: str  # its name
    resolved: str  # the resolved graph
    seed: int
    rounds: int  # after which the recording began, those of the warm-up included
    inputs: tuple[str, ...]  # whose edges were recorded
    pairs: tuple[NamedPair, ...]  # the replica pairs of all edges, by number
    libraries: Mapping[str, str]
    firing: Mapping[str, Any] | None = None  # of a node that failed, if the tape is of this firing


class TapeWriter:
    """Writes a tape, frame by frame."""

    def __init__(self, file: BinaryIO, facts: TapeFacts, parts: Parts) -> None:
        self._file = file
        file.write(FORMAT)
        pairs = [list(pair) for pair in facts.pairs]
        values = {name: getattr(facts, name) for name in TapeFacts.__slots__}
        self._write(FACTS, json.dumps({**values, "pairs": pairs}))
        for key, saved in sorted(parts.items()):
            self._write(PART, key, encode_value([dict(saved.arrays), saved.text]))

    def write_token(self, hashed: TokenHash) -> None:
        """Write a token, which must come in the order of the serial program."""
        position, pair, version, digest, content = hashed[:5]
        self._write(TOKEN, list(position), pair, version, digest, content)

    def write_input(self, port: str, content: bytes) -> None:
        """Write the encoded value that a node took from an input."""
        self._write(INPUT, port, content)

    def end(self, train_iters: int) -> None:
        """Write the end, with the number of train iterations at the cut."""
        self._write(END, train_iters)

    def _write(self, *frame: Any) -> None:
        body = msgpack.packb(frame)
        self._file.write(FRAME.pack(len(body), zlib.crc32(body)))
        self._file.write(body)


def is_tape(path: Path) -> bool:
    """Return whether a file begins as a tape does."""
    try:
        with path.open("rb") as file:
            return file.read(len(FORMAT)) == FORMAT
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


class Tape:
    """A tape that is read. The facts and the parts are there; tokens are read as they are needed."""

    def __init__(self, path: Path) -> None:
        if not is_tape(path):
            raise UsageError(
                f"{path}: is not a tape that this version reads; `flowrl record` writes tapes, and a failed run does"
            )
        self.path = path
        self.facts: TapeFacts
        self.parts: dict[str, SavedState] = {}
        self.inputs: dict[str, Any] = {}  # what a node that failed took from its inputs
        self.train_iters: int | None = None  # at the cut; None if the tape lacks its end
        self.recorded: list[PairTokens] = []  # by replica pair
        self._read_all()

    def tokens_of(self, pair: int) -> Iterator[TokenHash]:
        """Yield the tokens of a replica pair, in the order of the serial program."""
        with self.path.open("rb") as file:
            for offset in self.recorded[pair].offsets:
                file.seek(offset)
                _, *values = self._frame(file)
                yield self._token(values)

    def _read_all(self) -> None:
        """Read the whole tape once, so that a damaged one is refused before anything is done with it."""
        frames = self._frames()
        try:
            self.facts = _facts(next(frames, (0, []))[1])
            self.recorded = [PairTokens() for _ in self.facts.pairs]
            for offset, (kind, *values) in frames:
                if self.train_iters is not None:
                    raise ValueError("something follows its end")
                self._take_in(offset, kind, values)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise RunError(f"{self.path}: the tape is damaged: {error}; record it again") from None

    def _take_in(self, offset: int, kind: str, values: Sequence[Any]) -> None:
        if kind == PART:
            key, content = values
            arrays, text = decode_value(content)
            self.parts[str(key)] = SavedState(arrays, str(text))
        elif kind == TOKEN:
            token = self._token(values)
            self.recorded[token.pair].add(offset, token)
        elif kind == INPUT:
            port, content = values
            self.inputs[str(port)] = decode_value(content)
        elif kind == END:
            [self.train_iters] = map(int, values)
        else:
            raise ValueError(f"it has something of the unknown kind {kind!r:.40}")

    def _token(self, values: Sequence[Any]) -> TokenHash:
        position, pair, version, digest, content = values
        if not (isinstance(pair, int) and 0 <= pair < len(self.facts.pairs)):
            raise ValueError(f"a token belongs to edge {pair!r:.40}, which the tape does not name")
        if not (position and all(isinstance(number, int) for number in position)):
            raise ValueError("a token has no position")
        return TokenHash(tuple(position), pair, int(version), bytes(digest), bytes(content))

    def _frames(self) -> Iterator[tuple[int, Frame]]:
        """Yield the whole frames with their offsets. A run that is killed leaves an incomplete one at the end."""
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            offset = file.seek(len(FORMAT))
            while size - offset >= FRAME.size:
                length, _ = FRAME.unpack(file.read(FRAME.size))
                if length > size - offset - FRAME.size:
                    return
                file.seek(offset)
                yield offset, self._frame(file)
                offset = file.tell()

    def _frame(self, file: BinaryIO) -> Frame:
        length, checksum = FRAME.unpack(file.read(FRAME.size))
        body = file.read(length)
        if zlib.crc32(body) != checksum:
            raise ValueError(f"the checksum before byte {file.tell():,} is another one")
        frame: Frame = msgpack.unpackb(body, max_map_len=0, max_ext_len=0)
        if not (isinstance(frame, list) and frame and isinstance(frame[0], str)):
            raise ValueError("a frame has no kind")
        return frame


class PairTokens:
    """Where the tokens of one replica pair are in a tape, and how many tokens or different versions these are."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.count, self.nbytes, self.last_round = 0, 0, 0
        self.first: TokenHash | None = None

    def add(self, offset: int, token: TokenHash) -> None:
        self.offsets.append(offset)
        self.last_round = token.position[0]
        if not token.content:
            return  # a version that was read again
        self.first = self.first or token
        self.count += 1
        self.nbytes += len(token.content)


def _facts(frame: Frame) -> TapeFacts:
    if not frame or frame[0] != FACTS:
        raise ValueError("it has no facts")
    if len(frame[1]) > MAX_FACTS_BYTES:
        raise ValueError("its facts are too long")
    found = parse_object(frame[1])
    return TapeFacts(
        graph=str(found["graph"]),
        resolved=str(found["resolved"]),
        seed=int(found["seed"]),
        rounds=int(found["rounds"]),
        inputs=tuple(map(str, found["inputs"])),
        pairs=tuple(NamedPair(*map(str, pair)) for pair in found["pairs"]),
        libraries=dict(found["libraries"]),
        firing=found["firing"],
    )


def graph_of_tape(tape: Tape) -> Graph:
    """Return the graph of the run that was recorded."""
    return replace(load_text(tape.facts.resolved, str(tape.path)).graph, name=tape.facts.graph)
