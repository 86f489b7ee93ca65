"""When a run saves snapshots, and what it does with them."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flowrl.core.state import Count
from flowrl.runtime.snapshot import Parts
from flowrl.runtime.stored_pieces import PiecesAhead, StoredCopy


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a run between two rounds."""

    rounds: int  # completed rounds, those of the warm-up included
    counts: Count
    mark: Any  # what `SnapshotSink.mark` returned when the records of these rounds had been written
    parts: Parts


class SnapshotSink(Protocol):
    """Takes the snapshots of a run."""

    schedule: SnapshotSchedule

    def take_stored(self) -> Sequence[StoredCopy]:
        """Return which copies of this executor were written since the last call, or could not be."""

    def mark(self) -> Any:
        """Return how far the run's files have been written."""

    def write(self, snapshot: Snapshot) -> None:
        """Take a snapshot. It is written at the same time as the run goes on."""

    def write_ahead(self, pieces: PiecesAhead) -> None:
        """Take pieces to which a later snapshot will refer. They are written at the same time as the run goes on."""

    def fail(self, problem: str) -> None:
        """Take the reason why a snapshot could not be saved. The run goes on."""


class SnapshotSchedule:
    """The rounds after which snapshots are saved: every so many seconds or rounds, at known rounds, and on request.

    `request` may be called from any thread.
    """

    def __init__(
        self,
        every_s: float | None = None,
        every_rounds: int | None = None,
        known: Collection[int] = (),
    ) -> None:
        self._every_s, self._every_rounds = every_s, every_rounds
        self.known = frozenset(known)
        self._next_s = float("inf") if every_s is None else time.monotonic() + every_s
        self._is_requested = self.was_requested = False
        # Whether a snapshot is being written; then only known and requested ones are due.
        self.is_busy = False

    def request(self) -> None:
        """Ask for a snapshot after the next possible round."""
        self._is_requested = self.was_requested = True

    def end_regular(self) -> None:
        """From now on, no snapshot is due because of the time."""
        self._every_s, self._next_s = None, float("inf")

    def postpone(self) -> None:
        """Give up a snapshot that is due because of the time or on request."""
        self._is_requested = False
        if self._every_s is not None:
            self._next_s = time.monotonic() + self._every_s

    def wants_copies_ahead(self, rounds: int) -> bool:
        """Whether large buffers shall be copied ahead of a snapshot, after so many rounds.

        They shall if one is due because of the time or on request, or if half of the rounds to the next one are over.
        """
        if self.is_busy:
            return False
        if self._is_requested or time.monotonic() >= self._next_s:
            return True
        if self._every_rounds is not None:
            return rounds % self._every_rounds >= self._every_rounds // 2
        before = [0, *(known for known in self.known if known <= rounds)]
        after = [known for known in self.known if known > rounds]
        return bool(after) and 2 * rounds >= max(before) + min(after)

    def due_within(self, first: int, last: int, is_copied_ahead: bool = True) -> set[int]:
        """Return after which of the rounds from `first` to `last` a snapshot is due.

        Only those at known rounds do not wait until large buffers are copied ahead.
        """
        due = {rounds for rounds in self.known if first <= rounds <= last}
        if self._every_rounds is not None and not self.is_busy and is_copied_ahead:
            step = self._every_rounds
            due.update(range(-(-first // step) * step, last + 1, step))
        is_time = time.monotonic() >= self._next_s and not self.is_busy
        if first <= last and is_copied_ahead and (self._is_requested or is_time):
            due.add(first)
        if due:
            self.postpone()
        return due
