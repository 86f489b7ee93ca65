"""Brings a run that has lost a site back to its newest snapshot, until it has lost too many."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowrl.core.wording import count_text
from flowrl.runs.folder import RunFolder
from flowrl.runs.snapshot_files import read_newest_snapshot, snapshot_folders
from flowrl.runtime.sites.site_failures import SiteFailed, SiteLost
from flowrl.runtime.sites.site_restarts import WAITS_S
from flowrl.runtime.snapshot_schedule import Snapshot

if TYPE_CHECKING:
    from flowrl.runs.run import Run

POLL_S = 0.05
NO_SNAPSHOTS = (
    "the run could not go on, as it had no snapshot yet; with `snapshots: {every_s: 60}` in the graph it has one each "
    "minute, and begins anew before the first"
)
STARTED_TWICE = "the sites of the run were started again, and one was lost in the same way before the first firing"


class BackOff:
    """Counts losses. A run gives up if it loses sites again and again before it has a newer snapshot."""

    def __init__(self) -> None:
        self._rounds = -1  # of the snapshot that the last recovery began from
        self._losses = 0  # since the run has had this snapshot

    def wait_before_next(self, rounds: int) -> float | None:
        """Return how long to wait before going on after this many rounds; None if the run gives up."""
        if rounds > self._rounds:
            self._rounds, self._losses = rounds, 0
        self._losses += 1
        return WAITS_S[self._losses - 1] if self._losses <= len(WAITS_S) else None


class Recovery:
    """Decides from which snapshot a run goes on after the loss of a site, and brings its files back there."""

    def __init__(self, run: Run, is_wanted: bool) -> None:
        self._run, self.is_wanted = run, is_wanted
        self.is_under_way = False
        # The next executor begins with this snapshot; if there is none, with the first firing of the run.
        self.snapshot: Snapshot | None = run.continued.snapshot if run.continued else None
        # When the run's first firing began, if a site was lost after it.
        self.first_began_s: float | None = None
        self.lines: list[str] = []  # for the summary, one for each recovery
        self._beginning: Mapping[str, Any] = {}
        self._back_off = BackOff()
        self._lost_at_start = ""  # the newest loss before the first firing

    @property
    def count(self) -> int:
        return len(self.lines)

    def begin(self) -> None:
        """Remember how far the run's files are written, as it may have to begin anew."""
        self._beginning = self._run.mark()

    def go_back(self, folder: RunFolder, loss: SiteLost) -> bool:
        """Bring the run back to its newest snapshot after a loss. Return whether it can go on from there."""
        run = self._run
        if not self._is_possible_after(loss):
            return False
        assert run.executor is not None
        self.is_under_way = True
        self.first_began_s = run.training_began_s
        run.executor.close()
        if run.snapshots is not None and not run.snapshots.end():
            return False
        mark = self._choose_snapshot(folder)
        rounds = self.snapshot.rounds if self.snapshot else 0
        wait_s = self._back_off.wait_before_next(rounds)
        if wait_s is None:
            return False
        run.show(self._add_line(loss, rounds))
        self._wait_unless_stopping(wait_s)
        run.require_no_stop()
        if run.sites.hosts is not None:
            run.sites.hosts.sites.end()
            run.place_on_hosts(folder)
        run.rewind(folder, mark)
        folder.replace_in_tensorboard(self.snapshot.counts.env_steps if self.snapshot else 0)
        self.is_under_way = False
        return True

    def _is_possible_after(self, loss: SiteLost) -> bool:
        run = self._run
        if isinstance(loss, SiteFailed) or run.is_stopping:
            return False  # it would happen again, or nothing is lost
        if not self.is_wanted or run.recording is not None:
            return False
        if run.training_began_s is None:
            return self._may_start_again(loss)
        if run.snapshots is None:
            return False
        if not run.graph.snapshots.is_regular and run.snapshots.newest is None:
            run.hints = (NO_SNAPSHOTS,)
            return False
        return True

    def _may_start_again(self, loss: SiteLost) -> bool:
        """Whether the sites are started again after a loss before the first firing, which needs no snapshot.

        A loss of the same kind follows from the graph or the machine, and would happen each time.
        """
        if str(loss) == self._lost_at_start:
            self._run.hints = (STARTED_TWICE,)
            return False
        self._lost_at_start = str(loss)
        return True

    def _choose_snapshot(self, folder: RunFolder) -> Mapping[str, Any]:
        """Choose with what the next executor begins, and return how far the run's files were written then."""
        if snapshot_folders(folder.absolute_path):
            self.snapshot = read_newest_snapshot(folder.absolute_path).snapshot
            mark: Mapping[str, Any] = self.snapshot.mark
            return mark
        self.snapshot = self._run.continued.snapshot if self._run.continued else None
        return self._beginning

    def _add_line(self, loss: Exception, rounds: int) -> str:
        """Note that the run goes on after this many rounds, and return this in words."""
        if rounds:
            how = f"went on from its snapshot after {count_text(rounds, 'round')}"
        else:
            how = "was started again" if self.first_began_s is None else "went on anew"
        self.lines.append(f"{loss}; the run {how}")
        return self.lines[-1]

    def _wait_unless_stopping(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and not self._run.is_stopping:
            time.sleep(POLL_S)
