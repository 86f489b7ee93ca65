"""Which pieces of large arrays the snapshots of a site have, so that only those that changed are copied."""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.core.array_pieces import LARGE_BYTES, ArrayPieces, PieceVersion
from flowrl.core.batch import Array
from flowrl.core.errors import NodeError
from flowrl.core.saved_state import SavedState
from flowrl.machine.resource_limits import free_memory_bytes

REMEMBERED = 8  # snapshots that are not stored yet, because a disk may take none

# By the key of a part and the name of an array.
Versions = dict[tuple[str, str], list[PieceVersion]]
Changed = Mapping[tuple[str, str], Mapping[int, PieceVersion]]  # and the index of a piece


class StoredPieces:
    """Copies the pieces of live arrays that have changed since the newest stored snapshot."""

    def __init__(self, copies: int = 1) -> None:
        """`copies` are the copies of a piece that may be in memory at a time, until it is written."""
        self._copies = copies
        self._stored: int | None = None  # the completed rounds of the newest stored snapshot
        self._versions: dict[int, Versions] = {}  # by completed rounds

    def set_stored(self, rounds: int | None) -> None:
        """Note that the snapshot of these rounds is stored, with all of its pieces."""
        if rounds in self._versions:
            self._stored = rounds
            self._versions = {n: found for n, found in self._versions.items() if n >= rounds}

    def copy_changed(self, rounds: int, parts: dict[str, SavedState]) -> dict[str, SavedState]:
        """Return the parts of the snapshot of these rounds, with copies of what changed in their live arrays."""
        live = {
            (key, name): array
            for key, saved in parts.items()
            for name, array in saved.live_arrays().items()
            if array.nbytes >= LARGE_BYTES
        }
        versions = {path: array.piece_versions() for path, array in live.items()}
        changed = {path: self._changed(path, found) for path, found in versions.items()}
        _require_memory(changed, self._copies)
        self._remember(rounds, versions)
        return {key: self._copied(key, saved, changed) for key, saved in parts.items()}

    def _copied(self, key: str, saved: SavedState, changed: Changed) -> SavedState:
        """Return a part with copies of its live arrays: whole ones of small arrays, and pieces of large ones."""
        copies: dict[str, Array] = {}
        pieces: dict[str, ArrayPieces] = {}
        for name, array in saved.live_arrays().items():
            if array.nbytes < LARGE_BYTES:
                copies[name] = array.copy()
            else:
                copied = {index: array.copy_piece(index) for index in changed[key, name]}
                pieces[name] = ArrayPieces(array.dtype, array.shape, self._stored, copied)
        return saved.with_copies(copies, pieces) if copies or pieces else saved

    def _changed(
        self, path: tuple[str, str], versions: list[PieceVersion]
    ) -> dict[int, PieceVersion]:
        """Return the pieces of an array that the newest stored snapshot does not have."""
        stored = {} if self._stored is None else self._versions[self._stored]
        known = dict(enumerate(stored.get(path, ())))
        return {k: version for k, version in enumerate(versions) if known.get(k) != version}

    def _remember(self, rounds: int, new: Versions) -> None:
        self._versions[rounds] = new
        unstored = [n for n in self._versions if n != self._stored]
        for number in unstored[:-REMEMBERED]:
            del self._versions[number]


def _require_memory(changed: Changed, copies: int) -> None:
    """Refuse copies that exceed the free memory, for which the system would kill a process."""
    sizes = {path: sum(v.nbytes for v in found.values()) for path, found in changed.items()}
    needed, free = copies * sum(sizes.values()), free_memory_bytes()
    if free is not None and needed > free:
        key, _ = max(sizes, key=lambda path: sizes[path])
        problem = MemoryError(
            f"copies of what changed since the last snapshot take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB "
            "are free; save snapshots more often, from the beginning of the run on"
        )
        raise NodeError(key.partition("/")[2], "saving its state", problem)
