"""Demonstrations beside a buffer's rows: kept for ever, and the last rows of each batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Array, Batch
from flowrl.nodes.buffers.draws import Draw


class Demonstrations:
    """Holds what it is given; `share` of a batch's rows are demonstrations, one at least."""

    def __init__(self, whose: str, share: float, expected: bool) -> None:
        self.whose, self.share = whose, share
        self.expected = expected  # whether batches hold some
        self.table: Batch | None = None

    def push(self, demos: Batch) -> None:
        """Keep these for ever."""
        self.expected = True
        if len(demos):
            self.table = demos if self.table is None else Batch.concat([self.table, demos])

    def rows(self, batch_size: int) -> int:
        """How many rows of a batch are demonstrations."""
        return max(1, round(batch_size * self.share)) if self.expected else 0

    def join(
        self, agent: Mapping[str, Array], batches: int, rows: int, draw: Draw, **fill: Any
    ) -> dict[str, Array]:
        """`agent` holds the batches' other rows; what demonstrations lack of their columns is filled in."""
        demos, least = self.table, draw.least(rows)
        if demos is None or len(demos) < least:
            raise ValueError(
                f"{self.whose}: a batch takes {rows} demonstrations, {len(demos or ())} are held; "
                f"give it {least} at least"
            )
        index = draw(len(demos), batches, rows)
        more = {k: np.full(len(demos), v, agent[k].dtype) for k, v in fill.items() if k in agent}
        held = {**demos.columns, **more}
        found = {name: _behind(array, held[name][index], batches) for name, array in agent.items()}
        agent_rows = len(next(iter(found.values()))) // batches - rows
        is_demo = np.repeat([False, True], [agent_rows, rows])
        return {**found, "is_demo": np.tile(is_demo, batches)}

    def state_dict(self) -> dict[str, Any] | None:
        """All of them."""
        return None if self.table is None else dict(self.table.columns)

    def load_state_dict(self, state: Mapping[str, Array] | None) -> None:
        """Hold these instead."""
        self.table = None if state is None else Batch(state)
        self.expected = self.expected or self.table is not None


def _behind(agent: Array, demos: Array, batches: int) -> Array:
    """In each batch the agent's rows, then the demonstrations: (batches * rows, …)."""
    parts = [array.reshape(batches, -1, *array.shape[1:]) for array in (agent, demos)]
    joined = np.concatenate(parts, axis=1)
    return joined.reshape(-1, *joined.shape[2:])
