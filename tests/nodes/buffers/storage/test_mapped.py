"""Mapped storage: recovery of rows, refused folders, and reports of lost rows."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.context import Context
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.episode_replay_buffer import EpisodeReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.sequence_replay_buffer import SequenceReplayBuffer
from flowrl.nodes.buffers.storage import mapped
from flowrl.nodes.buffers.storage.commit_file import SLOT_BYTES, CommitFile, CommitRecord
from flowrl.nodes.buffers.storage.deduplication import FrameDeduplicator
from flowrl.nodes.buffers.storage.mapped import MappedColumn, MappedStorage
from flowrl.nodes.buffers.storage.ring import Ring


def rows(first: int, count: int) -> dict[str, np.ndarray]:
    """Make rows whose columns depend on their numbers; observations follow each other."""
    numbers = np.arange(first, first + count)
    image = (numbers[:, None] + np.arange(12)).astype(np.uint8).reshape(count, 3, 4)
    return {"obs": image, "next_obs": image + np.uint8(1), "number": numbers}


def assert_holds(ring: Ring, first: int, stop: int) -> None:
    held, expected = ring.in_order(), rows(first, stop - first)
    assert held.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(held[name], array), name


def ring(path: Path, size: int = 20, deduplicate: bool = False, **more: Any) -> Ring:
    return Ring(
        size,
        metadata={"seen": "int32"},
        deduplicator=FrameDeduplicator({}) if deduplicate else None,
        storage=MappedStorage(path=str(path), **more),
    )


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("pushed", [7, 20, 33, 70])
def test_rows_of_a_closed_buffer_are_recovered(
    tmp_path: Path, deduplicate: bool, pushed: int
) -> None:
    one = ring(tmp_path / "rows", deduplicate=deduplicate)
    for first in range(0, pushed, 7):
        one.push(rows(first, min(7, pushed - first)), seen=1)
    one.close()
    again = ring(tmp_path / "rows", deduplicate=deduplicate, on_existing="reuse")
    held = min(pushed, 20)
    assert again.recovery_report == f"'{tmp_path / 'rows'}' holds {held} rows"
    assert_holds(again, pushed - held, pushed)
    again.push(rows(pushed, 30), seen=2)
    assert_holds(again, pushed + 10, pushed + 30)
    again.close()


@pytest.mark.parametrize("deduplicate", [False, True])
def test_rows_that_may_be_overwritten_are_not_recovered(tmp_path: Path, deduplicate: bool) -> None:
    one = ring(tmp_path / "rows", size=128, deduplicate=deduplicate)
    one.push(rows(0, 128), seen=0)
    one.flush()
    one.push(rows(128, 30), seen=0)
    one.storage.close()  # as if the process were killed: no record is written
    again = ring(tmp_path / "rows", size=128, deduplicate=deduplicate, on_existing="reuse")
    assert again.recovery_report.endswith(
        f"holds 82 rows; process {os.getpid()} did not close it: rows from number "
        "128 on were not flushed and are lost, and so are 46 of the oldest, which may be overwritten"
    )
    assert_holds(again, 46, 128)
    again.push(rows(128, 100), seen=0)
    assert_holds(again, 100, 228)
    again.close()


def test_rows_are_flushed_every_flush_every_rows(tmp_path: Path) -> None:
    one = ring(tmp_path / "rows", size=1000, flush_every_rows=50)
    for first in range(0, 180, 20):
        one.push(rows(first, 20), seen=0)
    one.storage.close()
    again = ring(tmp_path / "rows", size=1000, on_existing="reuse")
    assert_holds(again, 0, 180 - 180 % 60)
    again.close()


def test_cleared_rows_are_not_recovered(tmp_path: Path) -> None:
    one = ring(tmp_path / "rows")
    one.push(rows(0, 10), seen=0)
    one.flush()
    one.clear()
    one.storage.close()
    again = ring(tmp_path / "rows", on_existing="reuse")
    assert again.row_count == 0
    assert again.written == 10  # numbers are never reused
    again.push(rows(10, 5), seen=0)
    assert_holds(again, 10, 15)
    again.close()


def test_rows_of_a_loaded_state_are_recovered(tmp_path: Path) -> None:
    plain = Ring(20, metadata={"seen": "int32"})
    plain.push(rows(0, 33), seen=0)
    one = ring(tmp_path / "rows")
    one.push(rows(100, 20), seen=0)
    one.load_state_dict(plain.state_dict())
    one.storage.close()
    again = ring(tmp_path / "rows", on_existing="reuse")
    assert_holds(again, 13, 33)
    again.close()


def test_an_existing_folder_is_refused_unless_on_existing_allows_it(tmp_path: Path) -> None:
    one = ring(tmp_path / "rows")
    one.push(rows(0, 10), seen=0)
    one.close()
    with pytest.raises(
        FileExistsError, match="`on_existing: reuse` to continue with its rows, `on_e"
    ):
        ring(tmp_path / "rows")
    new = ring(tmp_path / "rows", on_existing="new")
    assert new.row_count == 0
    new.push(rows(50, 10), seen=0)
    assert_holds(new, 50, 60)
    new.close()


def test_a_folder_with_other_files_is_not_deleted(tmp_path: Path) -> None:
    one = ring(tmp_path / "rows")
    one.push(rows(0, 10), seen=0)
    one.close()
    (tmp_path / "rows" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"also contains 'notes\.txt', .* nothing was deleted"):
        ring(tmp_path / "rows", on_existing="new")
    again = ring(tmp_path / "rows", on_existing="reuse")
    assert_holds(again, 0, 10)
    again.close()


@pytest.mark.parametrize("existing", ["reuse", "new"])
def test_a_folder_that_is_not_a_buffer_is_refused_and_not_changed(
    tmp_path: Path, existing: str
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"is not a buffer of flowrl .* nothing in it was changed"):
        ring(tmp_path / "rows", on_existing=existing)
    assert (tmp_path / "rows" / "thesis.tex").read_text() == "mine"


def test_a_buffer_with_another_size_or_other_columns_is_refused(tmp_path: Path) -> None:
    one = ring(tmp_path / "rows", size=20)
    one.push(rows(0, 10), seen=0)
    one.close()
    with pytest.raises(ValueError, match="made for 20 rows; this buffer is for 30 rows"):
        ring(tmp_path / "rows", size=30, on_existing="reuse")
    message = (
        "made for 20 rows; this buffer is for 20 rows with deduplicated frames .obs of 1 frame"
    )
    with pytest.raises(ValueError, match=message):
        ring(tmp_path / "rows", deduplicate=True, on_existing="reuse")
    right = ring(tmp_path / "rows", on_existing="reuse")
    with pytest.raises(ValueError, match="the rows have the columns number; the buffer holds obs"):
        right.push({"number": np.arange(3)}, seen=0)
    wrong = {**rows(10, 3), "obs": np.zeros((3, 5, 5), np.uint8)}
    with pytest.raises(ValueError, match=r"rows of uint8\[5,5\]; the buffer holds uint8\[3,4\]"):
        right.push(wrong, seen=0)
    assert_holds(right, 0, 10)
    right.close()


@pytest.mark.parametrize("deduplicate", [False, True])
@pytest.mark.parametrize("how", ["flipped", "zeroed", "swapped", "checksum"])
def test_rows_that_changed_on_the_disk_are_found_when_they_are_opened(
    tmp_path: Path, how: str, deduplicate: bool
) -> None:
    one = ring(tmp_path / "rows", deduplicate=deduplicate)
    for first in range(0, 33, 3):
        one.push(rows(first, 3), seen=0)
    place = one.place_of(31)
    if deduplicate:
        place = int(one.columns["obs"][place : place + 1][0, 0])
    frames = list(one.storage._columns)  # type: ignore[attr-defined]
    column = frames.index("obs frames" if deduplicate else "obs")
    one.close()
    path = tmp_path / "rows" / f"{column}.{'sums' if how == 'checksum' else 'rows'}"
    content = np.fromfile(path, np.uint8)
    row_bytes = 8 if how == "checksum" else 12
    row = content[place * row_bytes :][:row_bytes]
    if how == "zeroed":
        row[:] = 0
    elif how == "swapped":
        row[:] = np.roll(row, 4)
    else:
        row[5] ^= 1
    content.tofile(path)
    with pytest.raises(
        ValueError, match=rf"'.*/{column}.rows' is damaged: 1 of .* rows have other"
    ):
        ring(tmp_path / "rows", deduplicate=deduplicate, on_existing="reuse")
    ring(tmp_path / "rows", deduplicate=deduplicate, on_existing="new").close()


def test_rows_of_every_width_have_checksums(tmp_path: Path) -> None:
    columns = {f"c{n}": np.zeros((4, n), np.uint8) for n in (0, 1, 2, 3, 4, 8, 9, 24)}
    one = Ring(6, storage=MappedStorage(path=str(tmp_path / "rows")))
    one.push(columns)
    one.close()
    again = Ring(6, storage=MappedStorage(path=str(tmp_path / "rows"), on_existing="reuse"))
    assert again.row_count == 4
    again.close()


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    one = ring(tmp_path / "rows")
    one.push(rows(0, 10), seen=0)
    one.close()
    about = tmp_path / "rows" / "about.json"
    about.write_text(about.read_text().replace('"format": 3', '"format": 9'))
    with pytest.raises(ValueError, match="has format 9; this version of flowrl reads 3"):
        ring(tmp_path / "rows", on_existing="reuse")


def test_a_missing_or_truncated_file_is_refused(tmp_path: Path) -> None:
    one = ring(tmp_path / "rows")
    one.push(rows(0, 10), seen=0)
    one.close()
    file = tmp_path / "rows" / "0.rows"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=r"0\.rows' is too short"):
        ring(tmp_path / "rows", on_existing="reuse")
    file.unlink()
    with pytest.raises(ValueError, match=r"0\.rows' cannot be opened: No such file or directory; "):
        ring(tmp_path / "rows", on_existing="reuse")
    assert not file.exists()
    file.mkdir()
    with pytest.raises(ValueError, match=r"0\.rows' cannot be opened: Is a directory; it is a fil"):
        ring(tmp_path / "rows", on_existing="reuse")
    file.rmdir()
    file.write_bytes(whole)
    again = ring(tmp_path / "rows", on_existing="reuse")
    assert_holds(again, 0, 10)
    again.close()


@pytest.mark.parametrize("existing", ["reuse", "new"])
def test_a_missing_commit_file_is_named(tmp_path: Path, existing: str) -> None:
    ring(tmp_path / "rows").push(rows(0, 10), seen=0)
    (tmp_path / "rows" / "commits").unlink()
    with pytest.raises(ValueError, match=r"commits' cannot be opened: No such file .* nothing was"):
        ring(tmp_path / "rows", on_existing=existing)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"size": 20', '"size": "20"'),
        ('"size": 20', '"volume": 20'),
        ('"uint8"', '"object"'),
        ('"uint8"', '"nonsense"'),
        ('"columns": {', '"columns": [], "rest": {'),
        ("{", "[" * 100_000),
        ("{", "\ufffd"),
    ],
)
def test_a_malformed_layout_is_refused(tmp_path: Path, old: str, new: str) -> None:
    one = ring(tmp_path / "rows")
    one.push(rows(0, 10), seen=0)
    one.close()
    layout = tmp_path / "rows" / "about.json"
    layout.write_text(layout.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=r"rows' is not a buffer of flowrl \(about.json: "):
        ring(tmp_path / "rows", on_existing="reuse")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    one = ring(tmp_path / "file" / "rows")
    with pytest.raises(OSError, match="file/rows' cannot be made: Not a directory; set another"):
        one.push(rows(0, 10), seen=0)


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    one = ring(tmp_path / "rows")
    one.push(rows(0, 10), seen=0)
    code = (
        "from flowrl.nodes.buffers.storage.ring import Ring\n"
        "from flowrl.nodes.buffers.storage.mapped import MappedStorage\n"
        f"Ring(20, storage=MappedStorage(path={str(tmp_path / 'rows')!r}, on_existing='reuse'))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert other.returncode == 1
    assert f"is in use by process {os.getpid()}; wait until it has ended" in other.stderr
    with pytest.raises(BlockingIOError, match=f"by process {os.getpid()}"):
        ring(tmp_path / "rows", on_existing="new")  # it is not deleted either
    one.push(rows(10, 5), seen=0)
    assert_holds(one, 0, 15)
    one.close()


def test_a_torn_record_leaves_the_previous_one_valid(tmp_path: Path) -> None:
    commits = CommitFile(tmp_path / "c", CommitRecord())
    commits.write(CommitRecord(0, 5, 5))
    commits.write(CommitRecord(0, 9, 9))
    commits.close()
    whole = (tmp_path / "c").read_bytes()
    newer = commits.record.generation % 2 * SLOT_BYTES
    for torn in range(0, 76, 5):
        (tmp_path / "c").write_bytes(
            whole[: newer + torn] + b"\xff" * 8 + whole[newer + torn + 8 :]
        )
        found = CommitFile(tmp_path / "c")
        assert found.record.stop_row == (5 if torn < 68 else 9)
        found.close()
    (tmp_path / "c").write_bytes(bytes(2 * SLOT_BYTES))
    with pytest.raises(ValueError, match="neither record is intact"):
        CommitFile(tmp_path / "c")


def test_a_full_disk_is_an_error_at_the_first_push_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = ring(tmp_path / "rows")
    one.push(rows(0, 20), seen=0)

    def full(file: int, at: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped.os, "posix_fallocate", full)
    other = ring(tmp_path / "more")
    with pytest.raises(OSError, match="No space left on device; reduce `size`, or set `pat"):
        other.push(rows(0, 10), seen=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows"]
    assert_holds(one, 0, 20)
    one.close()


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Make the system refuse larger files, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_after_a_failed_allocation_the_next_push_succeeds(tmp_path: Path) -> None:
    one = ring(tmp_path / "rows", size=2000)
    with files_no_larger_than(12 * 2000 - 1):
        with pytest.raises(OSError, match="File too large; reduce `size`, or set `path`"):
            one.push(rows(0, 10), seen=0)
        assert list(tmp_path.iterdir()) == []
    one.push(rows(0, 10), seen=0)
    assert_holds(one, 0, 10)
    one.close()


def test_a_push_that_fails_for_lack_of_disk_space_keeps_the_stored_rows(tmp_path: Path) -> None:
    """Of two observation columns, the second needs more frames than fit on the disk."""
    rng = np.random.default_rng(0)

    def token(count: int, follows: bool) -> dict[str, np.ndarray]:
        obs = {f"obs/{name}": rng.integers(0, 255, (count + 1, 600), np.uint8) for name in "ab"}
        found = {name: array[:-1] for name, array in obs.items()}
        found |= {f"next_{name}": array[1:] for name, array in obs.items()}
        if not follows:
            found["next_obs/b"] = rng.integers(0, 255, (count, 600), np.uint8)
        return found

    one = Ring(
        64, deduplicator=FrameDeduplicator({}), storage=MappedStorage(path=str(tmp_path / "rows"))
    )
    for _ in range(12):
        one.push(token(8, True))
    before = one.in_order()
    failed = ""
    while not failed:
        try:
            before = one.in_order()
            with files_no_larger_than(66 * 600):
                one.push(token(8, False))
        except OSError as full:
            failed = str(full)
    assert "cannot take" in failed
    for count in (1, 3, 2):  # fewer rows than failed: the frames of the others must still be intact
        assert all(np.array_equal(v, one.in_order()[k]) for k, v in before.items())
        last = token(count, True)
        one.push(last)
        before = {k: np.concatenate([v, last[k]])[-64:] for k, v in before.items()}
    one.close()


def test_a_temporary_folder_of_a_killed_process_is_deleted(tmp_path: Path) -> None:
    remains = tmp_path / ".rows.99999999.new"
    remains.mkdir()
    (remains / "0.rows").write_bytes(bytes(100))
    one = ring(tmp_path / "rows")
    one.push(rows(0, 10), seen=0)
    assert not remains.exists()
    one.close()


def test_the_frame_file_grows_when_episodes_are_short(tmp_path: Path) -> None:
    one, plain = (
        ring(tmp_path / "rows", deduplicate=True),
        Ring(20, deduplicator=FrameDeduplicator({})),
    )
    rng = np.random.default_rng(0)
    for _ in range(6):
        shuffled = {k: rng.permutation(v) for k, v in rows(0, 9).items()}
        one.push(shuffled, seen=0)
        plain.push(shuffled)
    before = {k: v.copy() for k, v in plain.in_order().items()}
    one.close()
    again = ring(tmp_path / "rows", deduplicate=True, on_existing="reuse")
    for each in (again, plain):
        assert all(np.array_equal(v, before[k]) for k, v in each.in_order().items())
    for _ in range(6):
        shuffled = {k: rng.permutation(v) for k, v in rows(0, 9).items()}
        again.push(shuffled, seen=0)
        plain.push(shuffled)
    assert all(np.array_equal(v, again.in_order()[k]) for k, v in plain.in_order().items())
    again.close()


@pytest.mark.parametrize("column", [Column("bool"), Column("float32", (0,)), Column("int64", (2,))])
def test_rows_of_any_dtype_are_written_at_any_places(tmp_path: Path, column: Column) -> None:
    found = MappedColumn(tmp_path / "0.rows", column, 10)
    values = (
        np.arange(10 * 2).reshape(10, 2)[:, : max(column.shape, default=1)].astype(column.dtype)
    )
    values = values.reshape(10, *column.shape)
    found[0:4] = values[:4]
    found[np.array([7, 8, 5, 4])] = values[[7, 8, 5, 4]]
    found[np.array([], np.int64)] = values[:0]
    at = np.array([5, 3, 8, 7, 4])
    assert np.array_equal(found.take(at), values[at])
    found.close()


def test_rows_of_a_file_larger_than_memory_are_read_correctly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "free_memory_bytes", lambda: 1000)
    found = MappedColumn(tmp_path / "0.rows", Column("uint8", (3000,)), 20)
    values = np.random.default_rng(0).integers(0, 255, (20, 3000), np.uint8)
    found[0:20] = values
    at = np.array([19, 0, 7, 7, 12])
    assert np.array_equal(found.take(at), values[at])
    found.close()


# with buffers


def episodes(first: int, lengths: list[int]) -> Batch:
    ends = np.cumsum(lengths) - 1
    last = np.zeros(sum(lengths), bool)
    last[ends] = True
    flags = {"last": last, "terminated": last, "truncated": np.zeros_like(last)}
    return Batch({**rows(first, len(last)), **flags})


KINDS: list[tuple[Any, dict[str, Any]]] = [
    (NaiveReplayBuffer, {}),
    (AdvancedReplayBuffer, {"bookkeeping": True}),
    (EpisodeReplayBuffer, {}),
    (SequenceReplayBuffer, {"unroll_steps": 3}),
]


@pytest.mark.parametrize(("kind", "params"), KINDS, ids=[kind.__name__ for kind, _ in KINDS])
def test_every_kind_of_buffer_continues_with_its_rows(
    tmp_path: Path, kind: Any, params: Any
) -> None:
    def make_buffer(**more: Any) -> Any:
        storage = MappedStorage(path=str(tmp_path / "rows"), **more)
        return kind(size=30, batch_size=4, **params, storage=storage)

    node, first = make_buffer(), 0
    for lengths in ([5, 4], [6, 3, 2], [7, 7]):
        node.push(episodes(first, lengths))
        first += sum(lengths)
    node.close()
    again = make_buffer(on_existing="reuse")
    assert again.count > 0
    assert again.ctx.records[0] == f"'{tmp_path / 'rows'}' holds 30 rows"
    for _ in range(20):
        numbers = again.sample()["number"]
        assert numbers.min() >= first - 30
        assert numbers.max() < first
    again.push(episodes(first, [3, 3]))
    assert again.sample()["number"].max() < first + 6
    again.close()


def test_recovered_sequences_join_only_consecutive_rows(tmp_path: Path) -> None:
    def make_buffer(**more: Any) -> SequenceReplayBuffer:
        storage = MappedStorage(path=str(tmp_path / "rows"), **more)
        return SequenceReplayBuffer(size=90, batch_size=16, unroll_steps=4, storage=storage)

    node = make_buffer()
    for first in (0, 100, 200):  # each token ends within an episode
        batch = episodes(first, [6, 5])
        open_end = batch["last"].copy()
        open_end[-1] = False
        node.push(batch.replace(last=open_end))
    node.close()
    again = make_buffer(on_existing="reuse")
    for _ in range(20):
        batch = again.sample()
        steps = np.diff(batch["number"], axis=1)
        assert (steps[batch["valid"][:, 1:]] == 1).all()
    again.close()


def test_each_replica_has_its_own_folder(tmp_path: Path) -> None:
    nodes = []
    for replica in range(3):
        storage = MappedStorage(path=str(tmp_path / "rows"))
        config = NaiveReplayBuffer.Config(size=5, storage=storage)
        nodes.append(NaiveReplayBuffer(config=config, context=Context("b", replica=replica)))
        nodes[-1].push(Batch(rows(replica, 2)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows", "rows#1", "rows#2"]
    for node in nodes:
        node.close()


def test_a_node_that_is_restarted_within_a_run_continues_with_its_rows(tmp_path: Path) -> None:
    for restarts in range(3):
        config = NaiveReplayBuffer.Config(
            size=50, storage=MappedStorage(path=str(tmp_path / "rows"))
        )
        node = NaiveReplayBuffer(config=config, context=Context("b", restarts=restarts))
        assert node.count == 10 * restarts
        node.push(Batch(rows(10 * restarts, 10)))
        node.close()


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["cartpole_dqn", "cartpole_dqn_per"])
def test_a_run_has_the_same_digest_as_in_memory(tmp_path: Path, graph: str) -> None:
    def digest(name: str, **settings: Any) -> str:
        sets = {"buffer.size": 1200, **{f"buffer.{key}": value for key, value in settings.items()}}
        return flowrl.load(graph, set=sets).run(train_iters=30, out=tmp_path / name).digest

    in_memory = digest("memory")
    for name, deduplicate in (("plain", False), ("once", True)):
        rows = {"type": "mapped", "path": str(tmp_path / f"{name} rows"), "flush_every_rows": 100}
        assert digest(name, storage=rows, store_once=deduplicate) == in_memory


@pytest.mark.slow
def test_a_run_in_processes_has_the_same_digest_as_in_memory(tmp_path: Path) -> None:
    mapped = {"type": "mapped", "path": str(tmp_path / "rows")}
    runs = [
        flowrl.load("cartpole_dqn", set={"buffer.size": 1200, "buffer.storage": storage}).run(
            train_iters=20, placement=placement, out=tmp_path / placement
        )
        for storage, placement in ((mapped, "processes"), ("memory", "serial"))
    ]
    assert runs[0].digest == runs[1].digest
    found = ring(tmp_path / "rows", size=1200, on_existing="reuse")
    assert found.recovery_report.endswith("rows")  # the site's process has closed it
    found.close()


@pytest.mark.slow
def test_a_run_that_begins_with_stored_rows_reports_it(tmp_path: Path) -> None:
    mapped = {"type": "mapped", "path": str(tmp_path / "rows"), "on_existing": "reuse"}
    graph = flowrl.load("cartpole_dqn", set={"buffer.storage": mapped, "buffer.size": 2000})
    checked = graph.check()
    assert not checked.deterministic
    assert f"begins with the rows in '{tmp_path / 'rows'}'" in str(checked.reasons)
    first, second = (graph.run(train_iters=10, out=tmp_path / f"run{i}") for i in range(2))
    assert first.digest != second.digest
    log = (tmp_path / "run1" / "logs" / "buffer.log").read_text()
    assert f"holds {first.env_steps} rows" in log
    assert f"{first.env_steps} rows of an earlier process were continued with" in log
