"""Snapshots of a run on disk: `snapshots/ROUNDS/` in the run's folder, and `snapshots/pieces/`.

A snapshot's folder has `manifest.json` and `small`, the bytes of all that is small. Larger arrays are cut into pieces,
each a file that has the SHA-256 of its bytes as its name. A piece that an earlier snapshot has is not written again.
The manifest names the bytes of every part with their SHA-256, and
begins with its own. A folder gets its name when all of its bytes are durable, so a snapshot is there as a whole or not
at all. Nothing in these files is executed, and no name in them is used as a path.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowrl.core.array_pieces import LARGE_BYTES, ArrayPieces, piece_bounds, pieces_of
from flowrl.core.errors import RunError, UsageError
from flowrl.core.json_text import parse_object
from flowrl.core.saved_state import SavedState
from flowrl.core.state import Count
from flowrl.core.wording import size_text
from flowrl.runs.snapshot_pieces import (
    CHECKSUM,
    PIECES,
    SMALL,
    PieceReader,
    piece_checksum,
    sha256,
)
from flowrl.runtime.part_hashes import PartHashes, digest_of_hashes, hash_part, hash_piece
from flowrl.runtime.snapshot_schedule import Snapshot
from flowrl.runtime.stored_pieces import PieceHashes, PiecePath, PiecesAhead

FOLDER, MANIFEST = "snapshots", "manifest.json"
LOGS = "logs"  # of the run
PARTIAL = ".part-"  # begins the names of files and folders that are being written
REPLACED = ".old-"  # begins the name of a snapshot that is being replaced by one of the same rounds
FORMAT = "flowrl snapshot 2"
FREE_BYTES = 64 << 20  # space that is left to others
ROUNDS = re.compile(r"\d{1,18}")
TRANSIENT = (errno.EIO, errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ESTALE)
READ_ERRORS = (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError)
RETRY_S = (0.2, 1.0)  # the waits before a write that failed is tried again


# writing


@dataclass(slots=True)
class SnapshotWriter:
    """Writes the snapshots of one run into its folder."""

    run: Path
    keep: int
    written_pieces: int = 0
    # The checksums of the pieces that need not be written again, by their names.
    _durable: dict[str, str] = field(default_factory=dict)
    # Of the pieces that the last snapshot copied.
    copied_hashes: PieceHashes = field(default_factory=dict)
    # Of the newest copy of each piece, to which later snapshots may refer.
    _newest: dict[PiecePath, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.run / FOLDER

    def write(self, snapshot: Snapshot, facts: Mapping[str, Any]) -> str:
        """Write a snapshot, remove the oldest of too many, and return its digest. `facts` are about the whole run."""
        hashes = {key: hash_part(saved) for key, saved in snapshot.parts.items()}
        (self.folder / PIECES).mkdir(parents=True, exist_ok=True)
        self._require_space(self._new_bytes(snapshot, hashes))
        try:
            digest = self._write_hashed(snapshot, hashes, facts)
        except OSError:
            self._remove_unneeded()  # what a full disk has taken of it
            raise
        self.copied_hashes = {
            PiecePath(key, name, index): hashes[key].arrays[name][index]
            for key, saved in snapshot.parts.items()
            for name, array in saved.pieces.items()
            for index in array.pieces
        }
        self._newest |= self.copied_hashes
        for path in snapshot_folders(self.run)[self.keep :]:
            shutil.rmtree(path)
        self._remove_unneeded()
        return digest

    def write_ahead(self, copy: PiecesAhead) -> PieceHashes:
        """Write pieces to which later snapshots will refer, and return their hashes."""
        (self.folder / PIECES).mkdir(parents=True, exist_ok=True)
        self._require_space(sum(piece.nbytes for piece in copy.pieces.values()))
        hashes = {path: hash_piece(piece) for path, piece in copy.pieces.items()}
        try:
            for path, piece in copy.pieces.items():
                self._write_piece(hashes[path], piece.data)
        except OSError:
            self._remove_unneeded()
            raise
        self._newest |= hashes
        return hashes

    def forget_copies(self) -> None:
        """Remove the pieces that no snapshot has. Later snapshots are of nodes that are made anew."""
        self._newest = {}
        if (self.folder / PIECES).is_dir():
            self._remove_unneeded()

    def _write_hashed(
        self, snapshot: Snapshot, hashes: Mapping[str, PartHashes], facts: Mapping[str, Any]
    ) -> str:
        folder = self.folder / f"{PARTIAL}{snapshot.rounds}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        small = bytearray()
        parts = {
            key: self._write_part(saved, hashes[key], small)
            for key, saved in snapshot.parts.items()
        }
        digest = digest_of_hashes(snapshot.parts, hashes)
        manifest = {
            "format": FORMAT,
            "rounds": snapshot.rounds,
            "counts": list(snapshot.counts),
            "mark": snapshot.mark,
            "state_digest": digest,
            "facts": dict(facts),
            "parts": parts,
            "checksums": {CHECKSUM: self._checksums(parts)},
        }
        text = json.dumps(manifest).encode()
        write_durably(folder / SMALL, bytes(small))
        write_durably(folder / MANIFEST, sha256(text).encode() + b"\n" + text + b"\n")
        _sync(self.folder / PIECES)
        _sync(folder)
        self._sync_run()
        self._put_in_place(folder, self.folder / str(snapshot.rounds))
        return digest

    def _checksums(self, parts: Mapping[str, Any]) -> dict[str, str]:
        """Return the checksums of the pieces that are files, by their names."""
        return {sha: self._durable[sha] for sha, _ in _pieces(parts)}

    def _sync_run(self) -> None:
        """Wait until the run's other files are on the disk: its graph, and the records that the snapshot continues."""
        for folder in (self.run / LOGS, self.run):
            for path in folder.iterdir() if folder.is_dir() else ():
                if path.is_file():
                    _sync(path)
            if folder.is_dir():
                _sync(folder)

    def _write_part(
        self, saved: SavedState, hashes: PartHashes, small: bytearray
    ) -> dict[str, Any]:
        arrays, text = saved.parts()
        entry: dict[str, Any] = {
            "text": _append(small, text.encode(), hashes.text),
            "arrays": {},
        }
        for name, array in arrays.items():
            pieces = []
            for content, sha in zip(pieces_of(array), hashes.arrays[name], strict=True):
                if array.nbytes >= LARGE_BYTES:
                    self._write_piece(sha, content)
                    pieces.append([sha, len(content)])
                else:
                    pieces.append(_append(small, content, sha))
            entry["arrays"][name] = [array.dtype.str, list(array.shape), pieces]
        for name, found in saved.pieces.items():
            entry["arrays"][name] = self._write_pieces(found, hashes.arrays[name])
        return entry

    def _write_pieces(self, array: ArrayPieces, hashes: Sequence[str]) -> list[Any]:
        """Write the pieces of an array that are not missing. The others are on the disk."""
        for index, content in array.pieces.items():
            self._write_piece(hashes[index], content.data)
        bounds = [piece_bounds(index, array.nbytes) for index in range(array.count)]
        pieces = [[sha, end - begin] for sha, (begin, end) in zip(hashes, bounds, strict=True)]
        return [array.dtype.str, list(array.shape), pieces]

    def _write_piece(self, sha: str, content: memoryview) -> None:
        path = self.folder / PIECES / sha
        if sha not in self._durable:
            if not (path.is_file() and sha256(path.read_bytes()) == sha):
                partial = path.with_name(f"{PARTIAL}{sha}")
                write_durably(partial, content)
                partial.rename(path)
                self.written_pieces += 1
            self._durable[sha] = piece_checksum(content)

    def _new_bytes(self, snapshot: Snapshot, hashes: Mapping[str, PartHashes]) -> int:
        """Return how many bytes of a snapshot are to be written."""
        needed = 0
        for key, saved in snapshot.parts.items():
            for name, array in saved.all_arrays().items():
                shas = hashes[key].arrays[name]
                new = [sha not in self._durable or array.nbytes < LARGE_BYTES for sha in shas]
                needed += array.nbytes * sum(new) // max(len(new), 1)
        return needed

    def _require_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < needed + FREE_BYTES:
            have = f"{size_text(free)} are free, and {size_text(needed + FREE_BYTES)} are needed"
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({have})")

    def _put_in_place(self, partial: Path, final: Path) -> None:
        """Give the snapshot its name. One of the same rounds, from before a resume, is replaced.

        At no moment is there neither: `snapshot_folders` finds the replaced one while the name is free.
        """
        old = final.with_name(f"{REPLACED}{final.name}")
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
        partial.rename(final)
        _sync(self.folder)
        shutil.rmtree(old, ignore_errors=True)

    def _remove_unneeded(self) -> None:
        """Remove what was not completed, and the pieces that no snapshot has."""
        for path in self.folder.glob(f"{PARTIAL}*"):
            shutil.rmtree(path, ignore_errors=True)
        needed: set[str] = set()
        for path in snapshot_folders(self.run):
            try:
                needed |= {sha for sha, _ in _pieces(_read_manifest(path)["parts"])}
            except (OSError, ValueError):
                return  # it may need any piece
        needed.update(self._newest.values())
        for path in (self.folder / PIECES).iterdir():
            if path.name not in needed:
                path.unlink()
        self._durable = {sha: found for sha, found in self._durable.items() if sha in needed}


def _append(small: bytearray, content: bytes | memoryview, sha: str) -> list[Any]:
    small += content
    return [sha, len(content), len(small) - len(content)]


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Write a file, and wait until its bytes are on the disk. An error that may pass is tried again."""

    def write() -> None:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    _retrying(write)


def _retrying(write: Callable[[], None]) -> None:
    for wait_s in RETRY_S:
        try:
            return write()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            time.sleep(wait_s)
    return write()


def _sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# reading


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot that was read from a run's folder."""

    snapshot: Snapshot
    state_digest: str
    facts: Mapping[str, Any]  # about the whole run: its seed and limits
    damaged: tuple[str, ...] = ()  # why newer ones were passed over


def snapshot_folders(run: Path) -> list[Path]:
    """Return the folders of a run's snapshots, the newest first."""
    folder = run / FOLDER
    if not folder.is_dir():
        return []
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        rounds = path.name.removeprefix(REPLACED)
        if ROUNDS.fullmatch(rounds) and (path.name == rounds or int(rounds) not in found):
            found[int(rounds)] = path
    return [found[rounds] for rounds in sorted(found, reverse=True)]


def rounds_of(folder: Path) -> int:
    """Return the completed rounds of the snapshot in a folder."""
    return int(folder.name.removeprefix(REPLACED))


def read_newest_snapshot(run: Path) -> StoredSnapshot:
    """Read the newest snapshot that is whole. Those that are damaged are named."""
    damaged: list[str] = []
    for path in snapshot_folders(run):
        try:
            return _read_snapshot(path, tuple(damaged))
        except READ_ERRORS as error:
            damaged.append(f"{path}: {error}")
    if damaged:
        raise RunError("no snapshot of the run is whole:\n" + "\n".join(damaged))
    raise RunError(
        f"{run}: it has no snapshot to continue from; give the graph `snapshots: {{every_s: 60}}`, or save one with "
        "`flowrl snapshot` while it runs. `flowrl run GRAPH --from RUN` continues the learner alone"
    )


def read_counts_and_facts(path: Path) -> tuple[Count, Mapping[str, Any]]:
    """Read what the manifest of a snapshot says of the run, without the parts."""
    try:
        manifest = _read_manifest(path)
        return Count(*map(int, manifest["counts"])), manifest["facts"]
    except READ_ERRORS as error:
        raise RunError(f"{path}: {error}") from None


def read_snapshot_after(run: Path, rounds: int) -> StoredSnapshot:
    """Read the snapshot after this number of rounds."""
    folders = {rounds_of(path): path for path in snapshot_folders(run)}
    if rounds not in folders:
        known = ", ".join(map(str, sorted(folders)))
        has = f"its snapshots are those after {known} rounds" if known else "it has none at all"
        raise UsageError(
            f"{run}: it has no snapshot after {rounds} rounds; {has} (`snapshots.keep` says how many are kept)"
        )
    try:
        return _read_snapshot(folders[rounds], ())
    except READ_ERRORS as error:
        raise RunError(
            f"{folders[rounds]}: {error}; take another one, or none for the newest"
        ) from None


def _read_snapshot(path: Path, damaged: tuple[str, ...]) -> StoredSnapshot:
    manifest = _read_manifest(path)
    checksums = manifest.get("checksums", {}).get(CHECKSUM, {})
    reader = PieceReader(path.parent / PIECES, (path / SMALL).read_bytes(), checksums)
    parts = {}
    hashes = {}
    for key, entry in manifest["parts"].items():
        text = reader.text(entry["text"])
        arrays = {name: reader.array(found) for name, found in entry["arrays"].items()}
        parts[key] = SavedState(arrays, text)
        shas = {name: [sha for sha, *_ in found[2]] for name, found in entry["arrays"].items()}
        hashes[key] = PartHashes(entry["text"][0], shas)
    digest = digest_of_hashes(parts, hashes)
    if digest != manifest["state_digest"]:
        raise ValueError("the manifest's digest is not that of its parts")
    counts = Count(*map(int, manifest["counts"]))
    snapshot = Snapshot(int(manifest["rounds"]), counts, manifest["mark"], parts)
    return StoredSnapshot(snapshot, digest, manifest["facts"], damaged)


def _read_manifest(path: Path) -> dict[str, Any]:
    checksum, _, text = (path / MANIFEST).read_bytes().partition(b"\n")
    text = text.removesuffix(b"\n")
    if sha256(text) != checksum.decode("ascii", "replace"):
        raise ValueError(f"{MANIFEST} is damaged: its checksum is another one")
    manifest = parse_object(text)
    if manifest.get("format") != FORMAT:
        found = manifest.get("format")
        raise ValueError(
            f"its format is {found!r:.60}, and this version of flowrl reads '{FORMAT}'; continue the run with "
            "the version that wrote it, or begin with its learner: `flowrl run GRAPH --from RUN`"
        )
    return manifest


def _pieces(parts: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield the pieces of a manifest's parts that are files of their own."""
    for entry in parts.values():
        for _, _, pieces in entry["arrays"].values():
            yield from (piece for piece in pieces if len(piece) == 2)
