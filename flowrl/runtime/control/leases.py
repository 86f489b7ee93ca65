"""Grants rounds to the sites, in leases that are renewed before they end."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

LEASE_S = 0.5  # the work by which sites may be ahead of the slowest one
# The least work in a lease, in periods of reports: it is renewed when half of it is used, and reports are a period old.
LEASE_PERIODS = 3
MIN_LEASE_ROUNDS = 8
# The limit of the learners' states that a site keeps, one for each round of a lease.
KEPT_BYTES = 1 << 30
MIN_KEPT_ROUNDS = 2  # even for larger states: with one round, no site could be ahead


class Leases:
    """The rounds that sites have completed and may begin, including those of the warm-up."""

    def __init__(
        self,
        names: Iterable[str],
        free: Collection[str] = (),
        paced: Collection[str] = (),
        rounds_behind: int = 0,
        warm_up_rounds: int = 0,
        report_period_s: float = 0.0,
    ) -> None:
        """`free` sites take part in the warm-up only. `paced` sites may be behind the others by `rounds_behind`.

        Where sites report less often, leases are longer, so that nobody waits for the reports of the others.
        `flowrl.checks.site_kinds` explains both kinds.
        """
        self._rounds = dict.fromkeys(names, 0)
        self._free, self._paced = frozenset(free), frozenset(paced)
        self._rounds_behind, self._warm_up_rounds = rounds_behind, warm_up_rounds
        self._lease_s = max(LEASE_S, LEASE_PERIODS * report_period_s)
        self._begun = 0  # the rounds after which a continued run began
        self._completed = 0
        self.granted = 0
        self.last_round: float = inf  # no round after it may begin
        self._max_lease_rounds: float = inf

    def limit_by_memory(self, state_bytes: int) -> None:
        """Limit leases, because a site keeps this many bytes of states for each round of a lease."""
        if state_bytes:
            rounds = max(KEPT_BYTES // state_bytes, MIN_KEPT_ROUNDS)
            self._max_lease_rounds = min(self._max_lease_rounds, rounds)

    def begin_after(self, rounds: int) -> None:
        """Count from the rounds after which a run continues."""
        self._rounds = dict.fromkeys(self._rounds, rounds)
        self._begun = self.granted = rounds

    def set_rounds(self, name: str, rounds: int) -> None:
        if name in self._rounds:
            self._rounds[name] = rounds

    def remove(self, name: str) -> int:
        """Leave a lost site out. Return the rounds after which it may come back."""
        return max(self._rounds.pop(name), self.completed_rounds)

    def add(self, name: str, rounds: int) -> int:
        """Take a site in that begins after at least these rounds. Return after how many."""
        self._rounds[name] = max(rounds, self.completed_rounds)
        return self._rounds[name]

    @property
    def completed_rounds(self) -> int:
        """The rounds that all sites have completed; while no site has rounds, as many as before."""
        rounds = self._rounds.items()
        in_rounds = [n for s, n in rounds if s not in self._free or n < self._warm_up_rounds]
        self._completed = min(in_rounds, default=self._completed)
        return self._completed

    @property
    def fired_rounds(self) -> int:
        """The rounds that all sites but paced ones have completed. Only verdicts of paced sites can still cut there."""
        if not self._rounds_behind:
            return self.completed_rounds
        in_rounds = [n for s, n in self._rounds.items() if s not in self._paced | self._free]
        return min(in_rounds, default=self._completed)

    def grant(self, firing_s: float) -> int | None:
        """Return the rounds that may begin, or None if more than half of the current lease is left.

        `firing_s` is the time since the start of the first firing, from which the rounds in a lease are estimated.
        """
        fired = self.fired_rounds
        lease = max(
            MIN_LEASE_ROUNDS, int((fired - self._begun) / max(firing_s, 1e-9) * self._lease_s)
        )
        lease = int(min(lease, self._max_lease_rounds))
        granted = min(fired + lease, self.completed_rounds + max(lease, self._rounds_behind))
        granted = int(min(granted, self.last_round + 1))
        is_last = granted == self.last_round + 1 > self.granted
        if granted - self.granted < lease // 2 and not is_last:
            return None
        self.granted = granted
        return granted
