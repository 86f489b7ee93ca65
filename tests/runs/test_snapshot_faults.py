"""What is left of snapshots when the writer is killed, the power is lost, or the disk is full, fails or is slow."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core import array_pieces
from flowrl.core.array_pieces import ArrayPieces
from flowrl.core.batch import Array
from flowrl.core.saved_state import SavedState
from flowrl.core.state import Count
from flowrl.runs import run_snapshots, snapshot_files, snapshot_pieces
from flowrl.runs.run_snapshots import RunSnapshots
from flowrl.runs.snapshot_files import (
    FOLDER,
    PARTIAL,
    SnapshotWriter,
    read_newest_snapshot,
    read_snapshot_after,
    snapshot_folders,
)
from flowrl.runs.snapshot_pieces import PIECES
from flowrl.runtime.snapshot_schedule import Snapshot, SnapshotSchedule
from flowrl.runtime.stored_pieces import PiecePath, PiecesAhead, StoredCopy
from tests.runs.recorded_disk import Killed, RecordedDisk

ROWS = 60  # of 8 bytes, in pieces of 100 bytes


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (array_pieces, snapshot_pieces):
        monkeypatch.setattr(module, "PIECE_BYTES", 100)
    monkeypatch.setattr(snapshot_files, "LARGE_BYTES", 200)
    monkeypatch.setattr(snapshot_files, "RETRY_S", ())


def snapshot(rounds: int) -> Snapshot:
    rows = np.arange(ROWS)
    rows[:rounds] = -rounds
    parts = {"node/buffer": SavedState.of({"rows": rows, "size": rounds})}
    return Snapshot(rounds, Count(rounds), {}, parts)


def write(run: Path, rounds: int, keep: int = 1) -> str:
    return SnapshotWriter(run, keep).write(snapshot(rounds), {})


def read_rounds(run: Path) -> int:
    """The rounds of the newest snapshot, whose content is checked."""
    found = read_newest_snapshot(run)
    rounds = found.snapshot.rounds
    state = found.snapshot.parts["node/buffer"].state_dict()
    assert state["size"] == rounds
    assert (state["rows"][:rounds] == -rounds).all()
    return rounds


def make_run(folder: Path) -> Path:
    run = folder / "run"
    run.mkdir()
    (run / "graph.yaml").write_text("nodes: {}")
    return run


def count_operations(folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        run = make_run(folder)
        write(run, 5)
        disk = RecordedDisk(run, patch)
        write(run, 6)
    return len(disk.operations)


@pytest.mark.slow
def test_a_writer_that_is_killed_at_any_operation_leaves_a_whole_snapshot(tmp_path: Path) -> None:
    """Before each write, sync, rename, new folder and removal."""
    (tmp_path / "count").mkdir()
    for at in range(count_operations(tmp_path / "count")):
        folder = tmp_path / str(at)
        folder.mkdir()
        run = make_run(folder)
        write(run, 5)
        with pytest.MonkeyPatch.context() as patch:
            disk = RecordedDisk(run, patch)

            def kill(operation: Any, disk: RecordedDisk = disk, at: int = at) -> None:
                if len(disk.operations) >= at:
                    raise Killed

            disk.before = kill
            with pytest.raises(Killed):
                write(run, 6)
        assert read_rounds(run) in (5, 6)
        write(run, 7)
        assert read_rounds(run) == 7
        left = {path.name for path in (run / FOLDER).iterdir()}
        assert left == {"7", PIECES}


@pytest.mark.slow
@pytest.mark.parametrize("begins_with", [(), (5,), (4, 5)])
def test_a_loss_of_power_leaves_a_whole_snapshot(
    begins_with: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any operation, with any of what was not synced. A snapshot that was written is never lost."""
    run = make_run(tmp_path)
    for rounds in begins_with:
        write(run, rounds)
    with pytest.MonkeyPatch.context() as patch:
        disk = RecordedDisk(run, patch)
        write(run, 6)
        written = len(disk.operations)
        write(run, 7)
    rng = random.Random(0)
    for count in range(len(disk.operations) + 1):
        for attempt in range(4):
            target = tmp_path / f"{count}.{attempt}"
            disk.after_power_loss(count, target, rng)
            if count >= written:
                expected = {7} if count == len(disk.operations) else {6, 7}
            elif begins_with:
                expected = {begins_with[-1], 6}
            else:
                continue  # nothing was written yet
            assert read_rounds(target) in expected
            assert (target / "graph.yaml").read_text() == "nodes: {}"


def test_a_snapshot_is_there_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may end between the two renames of a replacement, and even several times."""
    write(tmp_path, 6)
    rename = Path.rename

    def ending(path: Path, target: Path) -> Path:
        if path.name.startswith(".part-") and target.name == "6":
            raise KeyboardInterrupt
        return rename(path, target)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", ending)
            with pytest.raises(KeyboardInterrupt):
                write(tmp_path, 6)
        assert read_rounds(tmp_path) == 6
        assert read_snapshot_after(tmp_path, 6).snapshot.rounds == 6
    write(tmp_path, 6)
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == ["6", "pieces"]
    assert read_rounds(tmp_path) == 6


def test_pieces_to_which_a_later_snapshot_may_refer_are_kept(tmp_path: Path) -> None:
    """Those of snapshots that were removed, and those that were copied ahead."""
    writer = SnapshotWriter(tmp_path, keep=1)
    stored: dict[int, str] = {}

    def written(rounds: int, *changed: int) -> dict[int, Array]:
        return {k: np.full(100, rounds * 10 + k, np.uint8) for k in changed}

    def pieces(rounds: int, *changed: int) -> Snapshot:
        rest = {k: sha for k, sha in stored.items() if k not in changed}
        array = ArrayPieces(np.dtype(np.uint8), (300,), written(rounds, *changed), rest)
        saved = SavedState({}, '{"rows": {"$array": "rows"}}', {"rows": array})
        return Snapshot(rounds, Count(), {}, {"node/buffer": saved})

    def save(rounds: int, *changed: int) -> list[int]:
        writer.write(pieces(rounds, *changed), {})
        stored.update({path.number: sha for path, sha in writer.copied_hashes.items()})
        rows = read_newest_snapshot(tmp_path).snapshot.parts["node/buffer"].state_dict()["rows"]
        return list(rows[::100])

    def copy_ahead(rounds: int, *changed: int) -> None:
        copied = {
            PiecePath("node/buffer", "rows", k): v for k, v in written(rounds, *changed).items()
        }
        hashes = writer.write_ahead(PiecesAhead(copied))
        stored.update({path.number: sha for path, sha in hashes.items()})

    assert save(1, 0, 1, 2) == [10, 11, 12]
    assert save(2, 0) == [20, 11, 12]
    assert [path.name for path in snapshot_folders(tmp_path)] == ["2"]
    copy_ahead(3, 1)
    assert save(4, 2) == [20, 31, 42]
    copy_ahead(5, 0, 1)
    copy_ahead(6, 0)
    assert save(7) == [60, 51, 42]
    assert save(8, 0) == [80, 51, 42]
    assert len(list((tmp_path / FOLDER / PIECES).iterdir())) == 3
    copy_ahead(9, 0)
    writer.forget_copies()
    assert len(list((tmp_path / FOLDER / PIECES).iterdir())) == 3


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("at", range(0, 12, 2))
def test_a_disk_that_fails_leaves_the_snapshot_before_and_nothing_of_the_new_one(
    at: int, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    write(run, 5)
    before = {path.name for path in (run / FOLDER / PIECES).iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        disk = RecordedDisk(run, patch)

        def fail(operation: Any) -> None:
            if operation[0] in ("write", "sync", "create") and len(disk.operations) >= at:
                raise OSError(number, os.strerror(number))

        disk.before = fail
        with pytest.raises(OSError, match=os.strerror(number)):
            write(run, 6)
    assert read_rounds(run) == 5
    assert {path.name for path in (run / FOLDER / PIECES).iterdir()} == before
    assert not list((run / FOLDER).glob(f"{PARTIAL}*"))
    write(run, 7)
    assert read_rounds(run) == 7


def test_a_slow_or_failing_disk_does_not_hold_up_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes waits for the disk; the run hands snapshots over, and is told what went wrong."""
    may_go_on, began = threading.Event(), threading.Event()
    sync, warnings = os.fsync, []

    def slow(descriptor: int) -> None:
        began.set()
        may_go_on.wait()
        sync(descriptor)

    def refused(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", slow)
    schedule = SnapshotSchedule(every_rounds=1)
    snapshots = RunSnapshots(tmp_path, schedule, 2, {}, lambda: None, warnings.append)
    snapshots.write(snapshot(5))
    began.wait()
    assert schedule.due_within(6, 9) == set()  # no other copies are made while the disk is busy
    assert snapshots.take_stored() == []
    may_go_on.set()
    assert snapshots.end()
    assert (read_rounds(tmp_path), snapshots.newest.rounds, warnings) == (5, 5, [])
    monkeypatch.setattr(os, "fsync", refused)
    snapshots.write(snapshot(6))
    assert snapshots.end()
    assert "cannot be written: Input/output error; the run goes on" in warnings[0]
    assert snapshots.newest.rounds == 5
    for rounds in (7, 8):  # a disk that is full stays so
        snapshots.write(snapshot(rounds))
    assert snapshots.end()
    assert len(warnings) == 1
    assert snapshots.problems == [f"{warnings[0]} (and 2 more)"]
    monkeypatch.setattr(os, "fsync", sync)
    snapshots.write(snapshot(9))
    assert snapshots.end()
    assert snapshots.newest.rounds == 9


@pytest.mark.slow
def test_the_end_of_a_run_waits_for_a_slow_disk_as_long_as_it_takes_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    sync, warnings = os.fsync, []
    monkeypatch.setattr(run_snapshots, "END_S", 1.0)

    def slow(descriptor: int) -> None:
        if os.fstat(descriptor).st_size == 100:  # a piece, of which there are four
            may_go_on.wait(0.4)
        sync(descriptor)

    def hanging(descriptor: int) -> None:
        may_go_on.wait()

    monkeypatch.setattr(os, "fsync", slow)
    snapshots = RunSnapshots(tmp_path, SnapshotSchedule(), 2, {}, lambda: None, warnings.append)
    snapshots.write(snapshot(5))
    assert snapshots.end()
    assert (read_rounds(tmp_path), warnings) == (5, [])
    monkeypatch.setattr(os, "fsync", hanging)
    snapshots.write(snapshot(6))
    assert not snapshots.end()
    assert "the disk took none of it for 1 s" in warnings[0]
    may_go_on.set()
    assert snapshots.end()
    assert read_rounds(tmp_path) == 6


def test_pieces_that_are_copied_ahead_are_written_or_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    path = PiecePath("node/buffer", "rows", 0)
    copies = [PiecesAhead({path: np.full(100, n, np.uint8)}) for n in range(2)]
    run = RunSnapshots(tmp_path, SnapshotSchedule(), 2, {}, lambda: None, warnings.append)
    pieces = tmp_path / FOLDER / PIECES

    def write_ahead(copy: PiecesAhead) -> StoredCopy:
        run.write_ahead(copy)
        while not (stored := run.take_stored()):
            time.sleep(0.001)
        return stored[0]

    stored = write_ahead(copies[0])
    assert stored.copy is copies[0]
    assert stored.hashes is not None
    assert [path.name for path in pieces.iterdir()] == [stored.hashes[path]]

    def refused(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refused)
        assert write_ahead(copies[1]) == StoredCopy(copies[1], None)
    assert "No space left on device; the run goes on" in warnings[0]
    assert len(list(pieces.iterdir())) == 1
    assert run.end()
    assert not list(pieces.iterdir())  # no snapshot has them
