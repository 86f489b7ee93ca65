"""Looking on while a run goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowrl.core.context import Record
from flowrl.runtime.records import RecordSource

if TYPE_CHECKING:
    from flowrl.runs.run import Run


class Watcher:
    """Who looks on while a run goes; the base looks away."""

    def begin(self, run: Run) -> None:
        """The run begins: its folder is there, its nodes are not made yet."""

    def note(self, run: Run, text: str) -> None:
        """Something happened to the run itself: a host joined, say."""

    def event(self, run: Run, source: RecordSource, record: Record) -> None:
        """A node told something."""

    def stopping(self, run: Run) -> None:
        """Somebody asked the run to stop. Called from a signal's handler, so print nothing here."""

    def end(self, run: Run) -> None:
        """The run has ended, however it did."""
