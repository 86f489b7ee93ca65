"""Snapshots on disk: written as a whole or not at all, checked when they are read, and sharing what is equal."""

from __future__ import annotations

import errno
import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64

from flowrl.core.array_pieces import PIECE_BYTES
from flowrl.core.errors import RunError
from flowrl.core.saved_state import SavedState
from flowrl.core.state import Count
from flowrl.runs import snapshot_files
from flowrl.runs.snapshot_files import (
    FOLDER,
    MANIFEST,
    SnapshotWriter,
    read_newest_snapshot,
    snapshot_folders,
)
from flowrl.runs.snapshot_pieces import CHECKSUM, PIECES, SMALL
from flowrl.runtime.part_hashes import digest_of_parts
from flowrl.runtime.snapshot_schedule import Snapshot

LARGE = PIECE_BYTES // 2 + 100  # float32 numbers: three pieces


def parts(rounds: int) -> dict[str, SavedState]:
    rows = np.arange(LARGE, dtype=np.float32)
    rows[:rounds] = -1
    state = {"rows": rows, "mean": np.full(3, rounds), "scalar": np.array(2.5), "none": np.empty(0)}
    return {
        "node/buffer": SavedState.of({"state": state, "size": rounds}),
        "edge/a": SavedState.of({"tokens": [("a", rounds)]}),
    }


def write(run: Path, *rounds: int, keep: int = 2) -> SnapshotWriter:
    writer = SnapshotWriter(run, keep)
    for number in rounds:
        snapshot = Snapshot(number, Count(number, 1, 2), {"files": {"m": number}}, parts(number))
        writer.write(snapshot, {"seed": 3})
    return writer


def read_rounds(run: Path) -> int:
    return read_newest_snapshot(run).snapshot.rounds


def pieces(run: Path) -> set[str]:
    return {path.name for path in (run / FOLDER / PIECES).iterdir()}


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    write(tmp_path, 5)
    found = read_newest_snapshot(tmp_path)
    snapshot = found.snapshot
    assert (snapshot.rounds, snapshot.counts) == (5, Count(5, 1, 2))
    assert (snapshot.mark, found.facts) == ({"files": {"m": 5}}, {"seed": 3})
    assert found.state_digest == digest_of_parts(parts(5)) == digest_of_parts(snapshot.parts)
    state = snapshot.parts["node/buffer"].state_dict()["state"]
    assert state["rows"].dtype == np.float32
    assert state["rows"][:6].tolist() == [-1] * 5 + [5]
    assert (state["scalar"].shape, state["none"].shape) == ((), (0,))
    assert snapshot.parts["edge/a"].state_dict() == {"tokens": [("a", 5)]}
    state["rows"][0] = 1  # nodes may write to what they load


def test_pieces_that_did_not_change_are_shared_and_not_written_again(tmp_path: Path) -> None:
    writer = write(tmp_path, 5)
    before = {
        name: (tmp_path / FOLDER / PIECES / name).stat().st_mtime_ns for name in pieces(tmp_path)
    }
    assert len(before) == 3
    writer.write(Snapshot(6, Count(), {}, parts(6)), {})
    after = pieces(tmp_path)
    assert len(after - before.keys()) == 1
    for name in before:
        assert (tmp_path / FOLDER / PIECES / name).stat().st_mtime_ns == before[name]


def test_the_oldest_are_removed_with_their_pieces(tmp_path: Path) -> None:
    write(tmp_path, 5, 6, 7, keep=2)
    assert [path.name for path in snapshot_folders(tmp_path)] == ["7", "6"]
    assert len(pieces(tmp_path)) == 4
    write(tmp_path, 8, keep=1)
    assert len(pieces(tmp_path)) == 3


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "deleted":
        path.unlink()
        return
    if how == "truncated":
        del content[len(content) // 2 :]
    elif how == "flipped":
        content[len(content) // 2] ^= 1
    elif how == "zeroed":
        content[:] = bytes(len(content))
    path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["truncated", "flipped", "zeroed", "deleted"])
@pytest.mark.parametrize("name", [MANIFEST, SMALL, PIECES])
def test_a_damaged_snapshot_is_named_and_the_one_before_is_used(
    name: str, how: str, tmp_path: Path
) -> None:
    write(tmp_path, 5)
    own = pieces(tmp_path)
    write(tmp_path, 6)
    file = tmp_path / FOLDER / "6" / name
    if name == PIECES:
        file = tmp_path / FOLDER / PIECES / min(pieces(tmp_path) - own)
    damage(file, how)
    found = read_newest_snapshot(tmp_path)
    assert found.snapshot.rounds == 5
    assert len(found.damaged) == 1
    assert str(tmp_path / FOLDER / "6") in found.damaged[0]


def test_without_a_whole_snapshot_all_are_named(tmp_path: Path) -> None:
    write(tmp_path, 5, 6)
    for number in (5, 6):
        damage(tmp_path / FOLDER / str(number) / SMALL, "flipped")
    with pytest.raises(RunError, match=r"(?s)no snapshot of the run is whole:.*/6: .*/5: "):
        read_newest_snapshot(tmp_path)
    with pytest.raises(RunError, match="it has no snapshot to continue from"):
        read_newest_snapshot(tmp_path / "other")


@pytest.mark.slow
@pytest.mark.parametrize("call", range(9))
def test_a_writer_that_is_killed_leaves_the_snapshot_before(
    call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fsync and each rename may be the last thing that the process does."""
    write(tmp_path, 5)
    left = call

    class Killed(BaseException):
        pass

    def dying(do: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return do(*arguments)

        return wrapped

    monkeypatch.setattr(os, "fsync", dying(os.fsync))
    monkeypatch.setattr(Path, "rename", dying(Path.rename))
    try:
        write(tmp_path, 6)
    except Killed:
        monkeypatch.undo()
        assert read_rounds(tmp_path) in (5, 6)
        write(tmp_path, 7)  # what the killed writer left does not disturb
    monkeypatch.undo()
    assert read_rounds(tmp_path) in (6, 7)


def test_a_snapshot_of_the_same_rounds_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 5)
    write(tmp_path, 5)
    assert read_rounds(tmp_path) == 5
    assert len(snapshot_folders(tmp_path)) == 1


def test_a_full_disk_is_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 5)
    monkeypatch.setattr(
        snapshot_files.shutil, "disk_usage", lambda path: type("", (), {"free": 1 << 20})
    )
    with pytest.raises(OSError, match=r"\(1\.0 MB are free, and 75\.5 MB are needed\)") as caught:
        write(tmp_path, 6)
    assert caught.value.errno == errno.ENOSPC
    assert len(pieces(tmp_path)) == 3
    assert read_rounds(tmp_path) == 5


def test_an_error_that_passes_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError(errno.EIO, "bad day"), OSError(errno.EIO, "bad day")]
    sync = os.fsync

    def failing(descriptor: int) -> None:
        if failures:
            raise failures.pop()
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    monkeypatch.setattr(snapshot_files, "RETRY_S", (0.0, 0.0))
    write(tmp_path, 5)
    assert not failures
    assert read_rounds(tmp_path) == 5


def read_manifest(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (run / FOLDER / "5" / MANIFEST).read_bytes().partition(b"\n")[2]
    )
    return found


def rewrite(run: Path, change: Any) -> None:
    """Change the manifest, and give it the checksum of its new text."""
    path, manifest = run / FOLDER / "5" / MANIFEST, read_manifest(run)
    change(manifest)
    text = json.dumps(manifest).encode()
    path.write_bytes(sha256(text).hexdigest().encode() + b"\n" + text + b"\n")


def test_a_piece_with_the_bytes_of_another_is_found(tmp_path: Path) -> None:
    write(tmp_path, 5)
    names = read_manifest(tmp_path)["parts"]["node/buffer"]["arrays"]["state/rows"][2]
    (one, size), (two, other_size), _ = names
    assert size == other_size
    folder = tmp_path / FOLDER / PIECES
    (folder / one).write_bytes((folder / two).read_bytes())
    with pytest.raises(RunError, match=f"pieces/{one} is damaged"):
        read_newest_snapshot(tmp_path)


def test_pieces_are_checked_by_the_checksums_of_the_manifest(tmp_path: Path) -> None:
    """They find the damage, and the names, which take longer, are not computed again."""
    write(tmp_path, 5)
    checksums = read_manifest(tmp_path)["checksums"][CHECKSUM]
    assert checksums.keys() == pieces(tmp_path)
    for sha, found in checksums.items():
        content = (tmp_path / FOLDER / PIECES / sha).read_bytes()
        assert found == xxh3_64(content).hexdigest()
    wrong = dict.fromkeys(checksums, "0" * 16)
    rewrite(tmp_path, lambda manifest: manifest["checksums"].update({CHECKSUM: wrong}))
    with pytest.raises(RunError, match=r"pieces/\w+ is damaged"):
        read_newest_snapshot(tmp_path)


@pytest.mark.parametrize("checksums", [None, {"another": {}}])
def test_pieces_without_a_known_checksum_are_checked_by_their_names(
    checksums: Any, tmp_path: Path
) -> None:
    """Those of snapshots before there were checksums, and of later versions."""
    write(tmp_path, 5)

    def change(manifest: dict[str, Any]) -> None:
        del manifest["checksums"]
        if checksums is not None:
            manifest["checksums"] = checksums

    rewrite(tmp_path, change)
    assert read_rounds(tmp_path) == 5
    damage(tmp_path / FOLDER / PIECES / min(pieces(tmp_path)), "flipped")
    with pytest.raises(RunError, match=r"pieces/\w+ is damaged"):
        read_newest_snapshot(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["parts"]["node/buffer"]["arrays"]["state/rows"][2].__setitem__(
            0, ["../../x", 9]
        ),
        lambda m: m["parts"]["node/buffer"]["arrays"]["state/rows"].__setitem__(0, "O"),
        lambda m: m["parts"]["node/buffer"]["arrays"]["state/rows"].__setitem__(1, [2**40]),
        lambda m: m["parts"]["node/buffer"].__setitem__("text", ["0" * 64, 4, 0]),
        lambda m: m.__setitem__("format", "flowrl snapshot 99"),
        lambda m: m.__setitem__("parts", []),
        lambda m: m.__setitem__("counts", "many"),
        lambda m: m["parts"].pop("edge/a"),
    ],
)
def test_a_hostile_manifest_is_refused(change: Any, tmp_path: Path) -> None:
    write(tmp_path, 5)
    rewrite(tmp_path, change)
    with pytest.raises(RunError, match="no snapshot of the run is whole"):
        read_newest_snapshot(tmp_path)
