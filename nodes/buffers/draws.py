"""Drawing: which rows a round's batches hold, and the batches as views of one gather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flowrl.core.batch import Array, Batch


class Draw:
    """Uniform draws of one generator."""

    def __init__(self, rng: np.random.Generator, replace: bool) -> None:
        self.rng, self.replace = rng, replace

    def __call__(self, held: int, rows: Sequence[int]) -> Array:
        """Numbers below `held`, so many for each batch; without replacement no batch holds one twice."""
        if self.replace:
            return self.rng.integers(held, size=sum(rows))
        return np.concatenate([self.rng.choice(held, n, replace=False) for n in rows])

    def least(self, rows: int) -> int:
        """How many there must be, to draw so many for a batch."""
        return min(rows, 1) if self.replace else rows


def wanted(node: str, asked: int | None, default: int) -> int:
    """How much a batch is to hold, by hand."""
    if asked is None:
        return default
    if asked < 1:
        raise ValueError(f"{node}: a batch of {asked} was asked for; ask for 1 or more, or nothing")
    return asked


def cut(columns: Mapping[str, Array], batches: int, rows: int) -> list[Batch]:
    """A table of (batches * rows, …) as so many batches: views of it."""
    if batches == 1:
        return [Batch(columns)]
    cuts = [slice(k * rows, (k + 1) * rows) for k in range(batches)]
    return [Batch({name: array[cut] for name, array in columns.items()}) for cut in cuts]


def too_few(node: str, wanted: int, held: int, what: str = "rows", expired: int = 0) -> ValueError:
    """What is said where a batch takes more than there is."""
    mend = "push more first (in a graph: a longer warm-up)"
    if expired:
        mend = (
            f"{expired} have left as stale or used up: let them stay longer (`max_use`, "
            "`max_staleness_iters`), or draw less for each push"
        )
    return ValueError(f"{node}: a batch takes {wanted} {what}, {held} are held; {mend}")


def joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    """The rows of all, in order."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
