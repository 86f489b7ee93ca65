"""Saves the snapshots of a run, and writes them in a thread of its own. Problems are shown, and do not end the run."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens_anywhere
from flowrl.graph.expand import expand
from flowrl.graph.model import Limits
from flowrl.machine.environment import library_versions
from flowrl.runs.folder import RunFolder
from flowrl.runs.snapshot_files import FOLDER, SnapshotWriter
from flowrl.runtime.control.cuts import CutPlanner, completed_at
from flowrl.runtime.snapshot_schedule import Snapshot, SnapshotSchedule
from flowrl.runtime.stored_pieces import PieceHashes, PiecesAhead, StoredCopy

if TYPE_CHECKING:
    from flowrl.runs.run import Run

PRECAUTION_EVERY_S = 300.0  # between the snapshots of a run whose graph does not say how often
END_S = 60.0  # without any piece that is written, before the last snapshots are given up


@dataclass(frozen=True, slots=True)
class WrittenSnapshot:
    """The newest snapshot of a run."""

    rounds: int
    state_digest: str


@dataclass(frozen=True, slots=True)
class Parent:
    """The run from which a run was forked, and its snapshot."""

    run_dir: str
    rounds: int
    state_digest: str
    same_random: bool  # whether the random numbers are those of the parent


@dataclass(frozen=True, slots=True)
class ContinuedRun:
    """A run that continues from a snapshot: in its own folder, or in a new one, as a fork."""

    folder: Path | None
    snapshot: Snapshot
    state_digest: str
    parent: Parent | None = None  # also of a fork that continues in its own folder

    @property
    def mark(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.snapshot.mark
        return found


def known_snapshot_rounds(checked: CheckedGraph, limits: Limits) -> set[int]:
    """Return the rounds after which the last snapshot is saved, if it is known where the run ends.

    If the run ends within a round, the snapshot is that of the round's beginning.
    """
    cuts = [cut for cut, _ in CutPlanner(checked, limits).known_cuts()]
    if not cuts:
        return set()
    cut = min(cuts, key=lambda position: (*position, inf))
    return {completed_at(cut)} - {0}


def inexact_reason(checked: CheckedGraph, is_single_site: bool) -> str:
    """Say why a run does not go on from a snapshot as it would have; empty if it does."""
    program = checked.program
    latest = [str(edge) for edge in checked.graph.edges if edge.kind == "state" and edge.latest]
    lacking = sorted(may_lack_tokens_anywhere(program))
    if is_single_site or not (latest or lacking):
        return ""
    what = (
        f"the edge {latest[0]} reads the latest version"
        if latest
        else f"'{lacking[0]}' may lack tokens"
    )
    return f"{what}, and on several sites what comes next depends on their speed"


def make_snapshots(run: Run, folder: RunFolder, saves_at_end: bool) -> RunSnapshots:
    """Make what saves the snapshots of a run."""
    settings = run.graph.snapshots
    are_precautions = not (settings.is_regular or settings.is_off)
    every_s = PRECAUTION_EVERY_S if are_precautions else settings.every_s
    saves_at_end = settings.is_regular or saves_at_end
    known = known_snapshot_rounds(run.checked, run.limits) if saves_at_end else ()
    snapshots = RunSnapshots(
        folder.absolute_path,
        SnapshotSchedule(every_s, settings.every_rounds, known),
        1 if are_precautions else settings.keep,
        {
            "graph": run.graph.name,
            "seed": run.seed,
            "limits": asdict(run.limits),
            "resolved": expand(run.graph),
            "parent": run.parent,
            "libraries": library_versions(),
        },
        run.mark,
        run.show,
        are_precautions,
    )
    if run.continued is not None and not run.is_fork:
        newest = run.continued
        snapshots.newest = WrittenSnapshot(newest.snapshot.rounds, newest.state_digest)
    return snapshots


class RunSnapshots:
    """The `SnapshotSink` of a run."""

    def __init__(
        self,
        run: Path,
        schedule: SnapshotSchedule,
        keep: int,
        facts: Mapping[str, Any],
        mark: Callable[[], Any],
        warn: Callable[[str], None],
        are_precautions: bool = False,
    ) -> None:
        """`facts` are about the whole run; `warn` shows a line to the user.

        Snapshots that are precautions are saved although the graph does not say so. If one cannot be saved, no other is
        tried; and they are removed if the run ends well.
        """
        self.schedule = schedule
        self._are_precautions, self._has_given_up = are_precautions, False
        self.newest: WrittenSnapshot | None = None  # or the one from which the run continues
        self.problems: list[str] = []
        self._failed_writes = 0  # in a row
        self._failing = 0, ""  # the place of their problem, and its text
        self._facts, self._mark, self._warn = facts, mark, warn
        self._writer = SnapshotWriter(run, keep)
        self._folder = run / FOLDER
        self._waiting: queue.SimpleQueue[Snapshot | PiecesAhead | None] = queue.SimpleQueue()
        self._stored: queue.SimpleQueue[StoredCopy] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def written_pieces(self) -> int:
        """The number of pieces that were written so far, by which others see that the disk takes something."""
        return self._writer.written_pieces

    def mark(self) -> Any:
        return self._mark()

    def write(self, snapshot: Snapshot) -> None:
        """Take a snapshot, which is written in the background. No other one is due before it is written."""
        self.schedule.is_busy = True
        self._begin_writing(snapshot)

    def write_ahead(self, pieces: PiecesAhead) -> None:
        self._begin_writing(pieces)

    def _begin_writing(self, copy: Snapshot | PiecesAhead) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="snapshots", daemon=True)
            self._thread.start()
        self._waiting.put(copy)

    def take_stored(self) -> list[StoredCopy]:
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._stored.get_nowait())
        return found

    def fail(self, problem: str) -> None:
        if not self._are_precautions or self.schedule.was_requested:
            self._add_problem(problem)
        elif not self._has_given_up:  # several sites may say so, and about several snapshots
            self._has_given_up = True
            self.schedule.end_regular()
            self._add_problem(problem)

    def _add_problem(self, problem: str) -> None:
        self.problems.append(f"no snapshot was saved: {problem}")
        self._warn(self.problems[-1])

    def _note_failed_write(self, problem: str) -> None:
        """Add the problem of a write; those of further writes in a row, such as on a full disk, are only counted."""
        self._failed_writes += 1
        if self._failed_writes == 1:
            self._add_problem(problem)
            self._failing = len(self.problems) - 1, self.problems[-1]
        else:
            index, text = self._failing
            self.problems[index] = f"{text} (and {self._failed_writes - 1} more)"

    def remove_precautions(self) -> None:
        """Remove the snapshots of a run that has ended well, unless somebody has asked for one."""
        if self._are_precautions and not self.schedule.was_requested:
            shutil.rmtree(self._folder, ignore_errors=True)
            self.newest = None

    def end(self) -> bool:
        """Wait until all snapshots are written, and return whether they are. More may be written afterwards."""
        if self._thread is None:
            return True
        self._waiting.put(None)
        written = -1
        while self._thread.is_alive():
            if written == (written := self.written_pieces):
                self._add_problem(f"{self._folder}: the disk took none of it for {END_S:g} s")
                return False
            self._thread.join(END_S)
        self._thread = None
        self.take_stored()  # what a later executor saves has nothing to do with it
        self._writer.forget_copies()
        return True

    def _write_all(self) -> None:
        while (copy := self._waiting.get()) is not None:
            hashes: PieceHashes | None = None
            try:
                if isinstance(copy, PiecesAhead):
                    hashes = self._writer.write_ahead(copy)
                else:
                    digest = self._writer.write(copy, self._facts)
                    hashes = self._writer.copied_hashes
                    self.newest = WrittenSnapshot(copy.rounds, digest)
                    self._failed_writes = 0
            except OSError as error:
                self._note_failed_write(
                    f"{self._folder}: cannot be written: {error.strerror or error}; the run goes on"
                )
            except Exception as error:  # the run must not end because of it
                self._add_problem(f"{type(error).__name__}: {error}")
            written = copy if isinstance(copy, PiecesAhead) else copy.rounds
            self._stored.put(StoredCopy(written, hashes))
            self.schedule.is_busy = not self._waiting.empty()
