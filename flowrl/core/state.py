"""The clock that a token carries, and the versions of a node's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flowrl.core.batch import Array, is_aligned
from flowrl.core.saved_state import SavedState


class Count(NamedTuple):
    """Progress: of one node, or summed over nodes."""

    env_steps: int = 0
    episodes: int = 0
    train_iters: int = 0


class Clock:
    """A vector clock: the progress of each node in a token's causal past. Immutable.

    Two clocks are merged by the larger count of each node, and totals are sums over nodes. So a replica counts once,
    however many paths its tokens took, and a fan-in adds replicas up.
    """

    __slots__ = ("_total", "counts")

    def __init__(self, counts: Mapping[str, Count]) -> None:
        self.counts = counts
        self._total: Count | None = None

    @property
    def total(self) -> Count:
        if self._total is None:
            self._total = Count(*map(sum, zip(*self.counts.values(), strict=True)))
        return self._total

    def merge(self, other: Clock) -> Clock:
        """Return a clock with the larger count of each node. No count of a node ever falls, so counts are ordered."""
        if other is self or not other.counts:
            return self
        if not self.counts:
            return other
        counts = dict(self.counts)
        for node, count in other.counts.items():
            mine = counts.get(node)
            if mine is None or count > mine:
                counts[node] = count
        return Clock(counts)

    def add(self, node: str, env_steps: int = 0, episodes: int = 0, train_iters: int = 0) -> Clock:
        """Return a clock in which the counts of `node` are increased."""
        old = self.counts.get(node, NO_COUNTS)
        new = Count(old[0] + env_steps, old[1] + episodes, old[2] + train_iters)
        return Clock({**self.counts, node: new})


NO_COUNTS = Count()
EMPTY_CLOCK = Clock({})


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """One version of a node's state: named arrays, and settings that depend on progress (`command`).

    `whole` is everything that the node's next firing depends on. Only versions that may be saved as checkpoints have
    it: those that pace a node, and those at a cut.
    """

    arrays: Mapping[str, Array]
    command: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    clock: Clock = EMPTY_CLOCK
    whole: SavedState | None = None

    def __post_init__(self) -> None:
        """Copy arrays that are not contiguous and aligned, as `Batch` does."""
        if not all(map(is_aligned, self.arrays.values())):
            copied = {n: a if is_aligned(a) else a.copy(order="K") for n, a in self.arrays.items()}
            object.__setattr__(self, "arrays", copied)
