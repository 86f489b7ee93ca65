"""What collectors and the first learner did, firing by firing, until no cut can fall before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowrl.core.state import Count
from flowrl.runtime.control.cuts import includes
from flowrl.runtime.site_state import Position


class CountLedger:
    """Counts by position, summed up as far as they are settled."""

    def __init__(self) -> None:
        self.settled = Count()
        self._open: list[tuple[Position, Count]] = []

    def add(self, entries: Iterable[Any]) -> None:
        """What a site told: pairs of a position and a count."""
        self._open += [(tuple(position), Count(*count)) for position, count in entries]

    def add_settled(self, entries: Iterable[Any]) -> None:
        """What counts wherever the run is cut."""
        self.settled = _sum([self.settled, *(Count(*count) for _, count in entries)])

    def settle(self, rounds: int) -> None:
        """Sum up what was done in the rounds before this one."""
        counts = [count for position, count in self._open if position[0] < rounds]
        if counts:
            self.settled = _sum([self.settled, *counts])
            self._open = [entry for entry in self._open if entry[0][0] >= rounds]

    def reached(self, env_steps: int, rounds: int) -> int | None:
        """The round at whose end so many steps had been done, if that is one of those before `rounds`."""
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
        """All that had been done at a cut."""
        return _sum([self.settled, *(c for position, c in self._open if includes(cut, position))])


def _sum(counts: Iterable[Count]) -> Count:
    return Count(*map(sum, zip(*counts, strict=True)))
