"""Keeps the counts of collectors and of the first learner, by position, until no cut can fall before them."""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.core.state import Count
from flowrl.runtime.control.cuts import includes
from flowrl.runtime.control.messages import PositionedCount
from flowrl.runtime.site_state import Position


class CountLedger:
    """Counts with their positions. Counts before which no cut can fall are summed up in `settled`."""

    def __init__(self) -> None:
        self.settled = Count()
        self._open: list[PositionedCount] = []

    def add(self, counts: Iterable[PositionedCount]) -> None:
        self._open += counts

    def add_settled(self, counts: Iterable[PositionedCount]) -> None:
        """Add counts that hold wherever the cut falls."""
        self.settled = total([self.settled, *(entry.counts for entry in counts)])

    def settle(self, rounds: int) -> None:
        """Sum up the counts of the rounds before this one."""
        closed = [entry.counts for entry in self._open if entry.position[0] < rounds]
        if closed:
            self.settled = total([self.settled, *closed])
            self._open = [entry for entry in self._open if entry.position[0] >= rounds]

    def round_of(self, env_steps: int, rounds: int) -> int | None:
        """Return the round at whose end this many env steps were reached; None if it is not before `rounds`."""
        steps = self.settled.env_steps
        if steps >= env_steps:
            return 0
        for position, count in sorted(self._open):
            if position[0] >= rounds:
                return None
            steps += count.env_steps
            if steps >= env_steps:
                return position[0]
        return None

    def counts_at(self, cut: Position) -> Count:
        """Return the sum of all counts up to a cut."""
        return total([self.settled, *(e.counts for e in self._open if includes(cut, e.position))])


def total(counts: Iterable[Count]) -> Count:
    """Return the sum of counts."""
    return Count(*map(sum, zip(Count(), *counts, strict=True)))


def difference(a: Count, b: Count) -> Count:
    """Return what is counted in `a` and not in `b`, which is a part of it."""
    return Count(*(one - other for one, other in zip(a, b, strict=True)))
