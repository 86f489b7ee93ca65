"""How often a run has lost a site and gone on from its newest snapshot, and when it gives up."""

from __future__ import annotations

from flowrl.core.wording import count_text

WAITS_S = (0.0, 1.0, 4.0, 10.0)  # before each recovery from the same snapshot; then the run fails


class Recovery:
    """Counts the losses of a run. It gives up when sites are lost again and again before there is a newer snapshot."""

    def __init__(self) -> None:
        self.lines: list[str] = []  # for the summary, one for each recovery
        self._rounds = -1  # of the snapshot that the last recovery began from
        self._losses = 0  # since the run has had this snapshot

    @property
    def count(self) -> int:
        return len(self.lines)

    def wait_before_next(self, rounds: int) -> float | None:
        """Return how long to wait before going on after this many rounds; None if the run gives up."""
        if rounds > self._rounds:
            self._rounds, self._losses = rounds, 0
        self._losses += 1
        return WAITS_S[self._losses - 1] if self._losses <= len(WAITS_S) else None

    def add(self, loss: Exception, rounds: int) -> str:
        """Note that the run goes on after this many rounds, and return this in words."""
        where = f"from its snapshot after {count_text(rounds, 'round')}" if rounds else "anew"
        self.lines.append(f"{loss}; the run went on {where}")
        return self.lines[-1]
