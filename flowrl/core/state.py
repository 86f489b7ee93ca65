"""What tokens carry beside their value: the clock of their causal past, and versions of state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flowrl.core.batch import Array, is_aligned


class Count(NamedTuple):
    """What one node has done."""

    env_steps: int = 0
    episodes: int = 0
    train_iters: int = 0


class Clock:
    """A vector clock: what each node had done in a token's causal past. Immutable.

    Two clocks merge by the larger count of each node; totals are sums over nodes, so a replica counts
    once however many ways its tokens took, and a fan-in adds replicas up.
    """

    __slots__ = ("_total", "counts")

    def __init__(self, counts: Mapping[str, Count]) -> None:
        self.counts = counts
        self._total: Count | None = None

    @property
    def total(self) -> Count:
        """The sum over all nodes."""
        if self._total is None:
            self._total = Count(*map(sum, zip(*self.counts.values(), strict=True)))
        return self._total

    def merge(self, other: Clock) -> Clock:
        """The later of both, node by node."""
        if other is self or not other.counts:
            return self
        if not self.counts:
            return other
        counts = dict(self.counts)
        for node, count in other.counts.items():
            mine = counts.get(node)
            counts[node] = count if mine is None else Count(*map(max, mine, count))
        return Clock(counts)

    def add(self, node: str, env_steps: int = 0, episodes: int = 0, train_iters: int = 0) -> Clock:
        """The clock after `node` did so much more."""
        old = self.counts.get(node, NO_COUNTS)
        new = Count(old[0] + env_steps, old[1] + episodes, old[2] + train_iters)
        return Clock({**self.counts, node: new})


NO_COUNTS = Count()
EMPTY_CLOCK = Clock({})


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """One version of a node's state: named arrays, and settings that depend on progress (`command`)."""

    arrays: Mapping[str, Array]
    command: Mapping[str, float] = field(default_factory=dict)
    version: int = 0
    clock: Clock = EMPTY_CLOCK

    def __post_init__(self) -> None:
        """Arrays are as those of a batch."""
        if not all(map(is_aligned, self.arrays.values())):
            whole = {n: a if is_aligned(a) else a.copy(order="K") for n, a in self.arrays.items()}
            object.__setattr__(self, "arrays", whole)
