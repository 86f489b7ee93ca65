"""Uniform draws of rows, and what is said when there are too few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowrl.core.batch import Array


class UniformSampler:
    """Draws indices uniformly, with its own generator."""

    def __init__(self, rng: np.random.Generator, replace: bool) -> None:
        self.rng, self.replace = rng, replace

    def draw(self, held: int, rows: Sequence[int]) -> Array:
        """Draw `rows[k]` indices below `held` for batch k. Without replacement no batch has an index twice."""
        if self.replace:
            return self.rng.integers(held, size=sum(rows))
        return np.concatenate([self.rng.choice(held, n, replace=False) for n in rows])

    def required(self, rows: int) -> int:
        """Return how many elements must be held to draw a batch of `rows` elements."""
        return min(rows, 1) if self.replace else rows


def requested_size(node: str, batch_size: int | None, default: int) -> int:
    """Return the size of a batch that is requested without the engine."""
    if batch_size is None:
        return default
    if batch_size < 1:
        raise ValueError(
            f"{node}: the batch size is {batch_size}; give 1 or more, or None for the default"
        )
    return batch_size


def concatenate_columns(tables: list[dict[str, Array]]) -> dict[str, Array]:
    """Concatenate the rows of tables, in order."""
    if len(tables) == 1:
        return tables[0]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def shortage_error(
    node: str, requested: int, held: int, what: str = "rows", expired: int = 0
) -> ValueError:
    """Return the error of a draw that needs more elements than are held."""
    hint = "push more first (in a graph: a longer warm-up)"
    if expired:
        hint = (
            f"{expired} have expired: increase `max_use` or `max_staleness_iters`, or draw fewer batches "
            "for each token"
        )
    return ValueError(f"{node}: a batch takes {requested} {what}, but {held} are held; {hint}")
