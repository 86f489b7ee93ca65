"""Executes graphs with snapshots, continues them in other placements, and compares what they do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.graph.model import Limits
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import make_layout
from flowrl.machine.numerics import reset_numerics
from flowrl.runs.snapshot_files import SnapshotWriter, read_newest_snapshot
from flowrl.runtime.executor import Cut, Executor
from flowrl.runtime.part_hashes import digest_of_parts
from flowrl.runtime.serial_executor import SerialExecutor
from flowrl.runtime.sites.coordinator import Coordinator
from flowrl.runtime.snapshot_schedule import Snapshot, SnapshotSchedule
from flowrl.runtime.stored_pieces import PiecesAhead, StoredCopy


@dataclass
class Execution:
    """What an execution did: it is the sink of records and of snapshots."""

    schedule: SnapshotSchedule
    records: list[str] = field(default_factory=list)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    digest: str = ""
    stored: list[StoredCopy] = field(default_factory=list)
    cut: Cut | None = None
    # What to do when so many records have arrived.
    at_record: dict[int, Callable[[], None]] = field(default_factory=dict)

    def record(self, source: Any, record: Any) -> None:
        if len(self.records) in self.at_record:
            self.at_record.pop(len(self.records))()
        self.records.append(f"{source} {getattr(record, 'values', type(record).__name__)}")

    def mark(self) -> int:
        return len(self.records)

    def write(self, snapshot: Snapshot) -> None:
        self.snapshots[snapshot.rounds] = snapshot

    def take_stored(self) -> list[StoredCopy]:
        stored, self.stored = self.stored, []
        return stored

    def write_ahead(self, pieces: PiecesAhead) -> None:
        self.stored.append(StoredCopy(pieces, None))

    def fail(self, problem: str) -> None:
        self.problems.append(problem)

    def digests(self, after: int = 0) -> dict[int, str]:
        """The digests of the snapshots of later rounds."""
        found = self.snapshots.items()
        return {n: digest_of_parts(snapshot.parts) for n, snapshot in found if n > after}


@dataclass
class StoringExecution(Execution):
    """An execution whose snapshots are written to a folder, and read again."""

    writer: SnapshotWriter | None = None
    left_out: int = 0  # pieces that snapshots left out, because they were stored before
    ahead: int = 0  # pieces that were copied ahead

    def write(self, snapshot: Snapshot) -> None:
        assert self.writer is not None
        arrays = [array for saved in snapshot.parts.values() for array in saved.pieces.values()]
        self.left_out += sum(array.count - len(array.pieces) for array in arrays)
        digest = self.writer.write(snapshot, {})
        found = read_newest_snapshot(self.writer.run)
        assert (found.snapshot.rounds, found.state_digest) == (snapshot.rounds, digest)
        super().write(found.snapshot)
        self.stored.append(StoredCopy(snapshot.rounds, self.writer.copied_hashes))

    def write_ahead(self, pieces: PiecesAhead) -> None:
        assert self.writer is not None
        self.ahead += len(pieces.pieces)
        self.stored.append(StoredCopy(pieces, self.writer.write_ahead(pieces)))


def execute(
    checked: CheckedGraph,
    placement: str,
    limits: Limits,
    at: Collection[int],
    begin: Snapshot | None = None,
    sink: Execution | None = None,
) -> Execution:
    """Execute a graph, with snapshots after these rounds, from its beginning or from a snapshot."""
    sink = sink or Execution(SnapshotSchedule(known=at))
    reset_numerics(checked.graph.torch_threads)
    executor: Executor
    if placement == "serial":
        executor = SerialExecutor(checked, sink, 0, limits)
    else:
        layout = make_layout(checked.graph, resolve_placement(checked.graph, placement))
        executor = Coordinator(checked, sink, layout, 0, limits)
    executor.snapshots = sink
    if begin is not None:
        executor.continue_from(begin)
    try:
        sink.cut = executor.run()
        sink.digest = executor.digest()
    finally:
        executor.close()
    return sink


def compare_continued(
    checked: CheckedGraph, rounds: int, at: Collection[int], *placements: str
) -> None:
    """Execute a graph without a stop, and continue it from each of its snapshots in each placement.

    Records, counts, the digest of the weights and those of all later snapshots must be equal.
    """
    limits = Limits(rounds=rounds)
    whole = execute(checked, "serial", limits, at)
    assert not whole.problems, whole.problems
    assert whole.snapshots.keys() == set(at)
    for placement in placements:
        placed = execute(checked, placement, limits, at)
        assert placed.digests() == whole.digests(), placement
        for begin, snapshot in placed.snapshots.items():
            rest = execute(checked, placement, limits, at, snapshot)
            where = f"{placement}, after {begin} rounds"
            assert rest.records == whole.records[whole.snapshots[begin].mark :], where
            assert rest.cut == whole.cut, where
            assert rest.digest == whole.digest, where
            assert rest.digests() == whole.digests(after=begin), where
