"""How far sites are, and how far they may go: rounds are granted in leases, renewed before they end."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

LEASE_S = 0.5  # of work that sites may be ahead of the slowest
LEAST_LEASE = 8  # rounds
KEPT_BYTES = (
    1 << 30
)  # of learners' states that a cut may still ask for: one for each round of a lease
FEWEST = 2  # rounds, however large a state: with one, nobody could be ahead


class Leases:
    """The rounds of all sites, those of the warm-up too."""

    def __init__(
        self,
        names: Iterable[str],
        free: Collection[str] = (),
        paced: Collection[str] = (),
        behind: int = 0,
        warm_rounds: int = 0,
    ) -> None:
        """`free` sites fire when they can, and take part in the warm-up only; on `paced` sites nothing fires in
        rounds, and they may be some rounds `behind` (0: they are waited for like the others)."""
        self._rounds = dict.fromkeys(names, 0)
        self._free, self._paced = frozenset(free), frozenset(paced)
        self._behind, self._warm_rounds = behind, warm_rounds
        self._granted = 0
        self._most: float = inf  # rounds of a lease

    def keep(self, state_bytes: int) -> None:
        """A site keeps so much for each round that may be open."""
        if state_bytes:
            self._most = min(self._most, max(KEPT_BYTES // state_bytes, FEWEST))

    def told(self, name: str, rounds: int) -> None:
        """So many whole rounds a site has behind it."""
        self._rounds[name] = rounds

    @property
    def final(self) -> int:
        """Rounds that all sites have ended."""
        rounds = self._rounds.items()
        return min(
            (n for s, n in rounds if s not in self._free or n < self._warm_rounds), default=0
        )

    @property
    def fired(self) -> int:
        """Rounds that all have ended but the paced; in them is no cut but theirs."""
        if not self._behind:
            return self.final
        return min(n for s, n in self._rounds.items() if s not in self._paced | self._free)

    def grant(self, firing_s: float) -> int | None:
        """The rounds that may begin, about as many as end while this is noticed; None while that is no news.

        `firing_s` is the time since the first could. Half a lease is left when it is renewed.
        """
        fired = self.fired
        lease = max(LEAST_LEASE, int(fired / max(firing_s, 1e-9) * LEASE_S))
        lease = int(min(lease, self._most))
        granted = min(fired + lease, self.final + max(lease, self._behind))
        if granted - self._granted < lease // 2:
            return None
        self._granted = granted
        return granted
