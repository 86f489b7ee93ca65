"""How far sites are, and how far they may go: rounds are granted in leases, which are renewed before they end."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

LEASE_S = 0.5  # of work that sites may be ahead of the slowest
LEAST_LEASE = 8  # rounds
KEPT_BYTES = (
    1 << 30
)  # of learners' states that a cut may still ask for: one for each round of a lease
LEAST_KEPT_ROUNDS = 2  # however large a state: with one, no site could be ahead


class Leases:
    """The rounds of all sites, those of the warm-up included."""

    def __init__(
        self,
        names: Iterable[str],
        free: Collection[str] = (),
        paced: Collection[str] = (),
        behind: int = 0,
        warm_rounds: int = 0,
    ) -> None:
        """`free` sites take part in the warm-up only. `paced` sites may be `behind` by this many rounds (0: they are
        waited for like the others). See `site_kinds`."""
        self._rounds = dict.fromkeys(names, 0)
        self._free, self._paced = frozenset(free), frozenset(paced)
        self._behind, self._warm_rounds = behind, warm_rounds
        self._granted = 0
        self._longest: float = inf  # rounds of a lease

    def limit_by_memory(self, state_bytes: int) -> None:
        """A site keeps this many bytes for each round of a lease."""
        if state_bytes:
            self._longest = min(self._longest, max(KEPT_BYTES // state_bytes, LEAST_KEPT_ROUNDS))

    def set_rounds(self, name: str, rounds: int) -> None:
        """A site has completed this many rounds."""
        self._rounds[name] = rounds

    @property
    def completed(self) -> int:
        """Rounds that all sites have completed."""
        rounds = self._rounds.items()
        return min(
            (n for s, n in rounds if s not in self._free or n < self._warm_rounds), default=0
        )

    @property
    def fired(self) -> int:
        """Rounds that all but paced sites have completed; only verdicts of paced sites can still cut in them."""
        if not self._behind:
            return self.completed
        return min(n for s, n in self._rounds.items() if s not in self._paced | self._free)

    def grant(self, firing_s: float) -> int | None:
        """The rounds that may begin, or None if more than half of the current lease is left.

        `firing_s` is the time since the first firing could begin: it tells how many rounds a lease of `LEASE_S` is.
        """
        fired = self.fired
        lease = max(LEAST_LEASE, int(fired / max(firing_s, 1e-9) * LEASE_S))
        lease = int(min(lease, self._longest))
        granted = min(fired + lease, self.completed + max(lease, self._behind))
        if granted - self._granted < lease // 2:
            return None
        self._granted = granted
        return granted
