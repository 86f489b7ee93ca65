"""Watchers: what is notified of the events of a run, such as a display or a tracker of experiments."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from flowrl.core.records import Record
from flowrl.runtime.records import RecordSource

if TYPE_CHECKING:
    from flowrl.runs.run import Run


class Watcher:
    """Is notified of what happens in a run. This base class ignores everything.

    The thread that runs the graph calls all methods but `note` and `stopping`, and an error of theirs ends the run.
    """

    def begin(self, run: Run) -> None:
        """The run's folder exists (`run.run_dir`), and `run.settings` are known; its nodes are not made yet."""

    def note(self, run: Run, text: str) -> None:
        """Something happened to the run itself; for example, a host joined."""

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        """A node emitted a record: `MetricsRecord` has its metrics, and a text is a line of its log."""

    def stopping(self, run: Run) -> None:
        """The run was asked to stop. A signal handler may call this, so it must not use Python's buffered output."""

    def end(self, run: Run) -> None:
        """The run has ended, whether it succeeded or not; `run.ended` is its result. Not called if `begin` failed."""


class Watchers(Watcher):
    """Notifies several watchers. All that have begun hear of the end, also if another one fails."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers
        self._begun: list[Watcher] = []

    def begin(self, run: Run) -> None:
        for watcher in self._watchers:
            watcher.begin(run)
            self._begun.append(watcher)

    def note(self, run: Run, text: str) -> None:
        for watcher in self._watchers:
            watcher.note(run, text)

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        for watcher in self._watchers:
            watcher.event(run, source, record)

    def stopping(self, run: Run) -> None:
        for watcher in self._watchers:
            watcher.stopping(run)

    def end(self, run: Run) -> None:
        with contextlib.ExitStack() as stack:
            for watcher in reversed(self._begun):
                stack.callback(watcher.end, run)
