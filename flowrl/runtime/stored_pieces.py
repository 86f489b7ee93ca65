"""Which pieces of large arrays are on the disk, so that a snapshot copies only those that changed since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from flowrl.core.array_pieces import LARGE_BYTES, ArrayPieces, LiveArray, PieceVersion
from flowrl.core.batch import Array
from flowrl.core.errors import NodeError
from flowrl.core.saved_state import SavedState
from flowrl.machine.resource_limits import free_memory_bytes

REMEMBERED = 8  # snapshots that are not stored yet, because a disk may take none

ArrayPath = tuple[str, str]  # the key of a part and the name of an array


class PiecePath(NamedTuple):
    """Where a piece is: the key of the part, the name of the array, and the number of the piece in it."""

    key: str
    name: str
    number: int


Versions = Mapping[PiecePath, PieceVersion]
LiveArrays = Mapping[ArrayPath, LiveArray]
PieceHashes = Mapping[PiecePath, str]  # SHA-256


@dataclass(frozen=True, slots=True, eq=False)
class PiecesAhead:
    """Copies of pieces that are stored ahead of a snapshot, which refers to those that have not changed until then."""

    pieces: Mapping[PiecePath, Array]


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """A copy that was written: the snapshot of these completed rounds, or pieces that were copied ahead of one."""

    copy: int | PiecesAhead
    hashes: PieceHashes | None  # of the pieces that were copied; None if they could not be written


class StoredPieces:
    """Copies the pieces of live arrays that are not stored."""

    def __init__(self, copies: int = 1) -> None:
        """`copies` are the copies of a piece that may be in memory at a time, until it is written."""
        self._copies = copies
        self._stored: dict[PiecePath, tuple[PieceVersion, str]] = {}
        # Of copies that may not be stored yet: by the completed rounds of a snapshot, and what was copied ahead last.
        self._copied: dict[int, Versions] = {}
        self._copied_ahead: Versions = {}

    def set_stored(self, rounds: int, hashes: PieceHashes) -> None:
        """Note that the pieces are stored which the snapshot of these rounds copied."""
        self._set_stored(self._copied.pop(rounds, {}), hashes)

    def set_stored_ahead(self, hashes: PieceHashes) -> None:
        """Note that the pieces are stored that were copied ahead last."""
        self._set_stored(self._copied_ahead, hashes)

    def _set_stored(self, copied: Versions, hashes: PieceHashes) -> None:
        for path, version in copied.items():
            if path in hashes:
                self._stored[path] = version, hashes[path]

    def changed(self, live: LiveArrays) -> dict[PiecePath, PieceVersion]:
        """Return the pieces of large arrays that are not stored as they are now."""
        return {
            path: version
            for (key, name), array in live.items()
            if array.nbytes >= LARGE_BYTES
            for index, version in enumerate(array.piece_versions())
            if not self._is_stored(path := PiecePath(key, name, index), version)
        }

    def _is_stored(self, path: PiecePath, version: PieceVersion) -> bool:
        return path in self._stored and self._stored[path][0] == version

    def copy_ahead(self, live: LiveArrays, paths: Iterable[PiecePath]) -> PiecesAhead:
        """Copy these pieces. The next ones are copied when they are stored."""
        versions, pieces = {}, {}
        for path in paths:
            array = live[path.key, path.name]
            versions[path] = array.piece_version(path.number)
            pieces[path] = array.copy_piece(path.number)
        self._copied_ahead = versions
        return PiecesAhead(pieces)

    def copy_changed(self, rounds: int, parts: dict[str, SavedState]) -> dict[str, SavedState]:
        """Return the parts of the snapshot of these rounds, with copies of what changed in their live arrays."""
        changed = self.changed(live_arrays(parts))
        _require_memory(changed, self._copies)
        self._remember(rounds, changed)
        return {key: self._copied_part(key, saved, changed) for key, saved in parts.items()}

    def _copied_part(self, key: str, saved: SavedState, changed: Versions) -> SavedState:
        """Return a part with copies of its live arrays: whole ones of small arrays, and pieces of large ones."""
        copies: dict[str, Array] = {}
        pieces: dict[str, ArrayPieces] = {}
        for name, array in saved.live_arrays().items():
            if array.nbytes < LARGE_BYTES:
                copies[name] = array.copy()
                continue
            copied: dict[int, Array] = {}
            stored: dict[int, str] = {}
            for index in range(array.count):
                if (path := PiecePath(key, name, index)) in changed:
                    copied[index] = array.copy_piece(index)
                else:
                    stored[index] = self._stored[path][1]
            pieces[name] = ArrayPieces(array.dtype, array.shape, copied, stored)
        return saved.with_copies(copies, pieces) if copies or pieces else saved

    def _remember(self, rounds: int, copied: Versions) -> None:
        self._copied[rounds] = copied
        for number in [*self._copied][:-REMEMBERED]:
            del self._copied[number]


def live_arrays(parts: Mapping[str, SavedState]) -> dict[ArrayPath, LiveArray]:
    """Return the live arrays of parts."""
    return {
        (key, name): array
        for key, saved in parts.items()
        for name, array in saved.live_arrays().items()
    }


def _require_memory(changed: Versions, copies: int) -> None:
    """Refuse copies that exceed the free memory, for which the system would kill a process."""
    sizes: dict[str, int] = {}
    for path, version in changed.items():
        sizes[path.key] = sizes.get(path.key, 0) + version.nbytes
    needed, free = copies * sum(sizes.values()), free_memory_bytes()
    if free is not None and needed > free:
        key = max(sizes, key=lambda key: sizes[key])
        problem = MemoryError(
            f"copies of what changed since the last snapshot take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB "
            "are free; save snapshots more often, from the beginning of the run on"
        )
        raise NodeError(key.partition("/")[2], "saving its state", problem)
