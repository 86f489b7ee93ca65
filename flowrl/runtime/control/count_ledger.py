"""The counts of collectors and of the first learner, by position, until no cut can fall before them."""

from __future__ import annotations

from collections.abc import Iterable

from flowrl.core.state import Count
from flowrl.runtime.control.cuts import includes
from flowrl.runtime.control.messages import PositionedCount
from flowrl.runtime.site_state import Position


class CountLedger:
    """`settled` sums up the counts that no cut can take back; the others are kept with their positions."""

    def __init__(self) -> None:
        self.settled = Count()
        self._open: list[PositionedCount] = []

    def add(self, counts: Iterable[PositionedCount]) -> None:
        self._open += counts

    def add_settled(self, counts: Iterable[PositionedCount]) -> None:
        """Add counts that hold wherever the run is cut."""
        self.settled = _sum([self.settled, *(entry.counts for entry in counts)])

    def settle(self, rounds: int) -> None:
        """Sum up the counts of the rounds before this one."""
        done = [entry.counts for entry in self._open if entry.position[0] < rounds]
        if done:
            self.settled = _sum([self.settled, *done])
            self._open = [entry for entry in self._open if entry.position[0] >= rounds]

    def round_of(self, env_steps: int, rounds: int) -> int | None:
        """The round at whose end this many env steps had been done; None unless it is before `rounds`."""
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

    def at(self, cut: Position) -> Count:
        """The sum of all counts up to a cut."""
        return _sum([self.settled, *(e.counts for e in self._open if includes(cut, e.position))])


def _sum(counts: Iterable[Count]) -> Count:
    return Count(*map(sum, zip(*counts, strict=True)))
