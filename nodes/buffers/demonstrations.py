"""Demonstrations beside a buffer's rows: kept for ever, and the last rows of each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Schema
from flowrl.core.context import Context
from flowrl.nodes.buffers.draws import Draw
from flowrl.nodes.origin import ORIGIN


def needed(schema: Schema) -> Schema:
    """The columns that demonstrations must have, beside rows with these: not who collected them."""
    return {name: column for name, column in schema.items() if name not in ORIGIN}


class Demonstrations:
    """Holds what it is given; `share` of a batch's rows are demonstrations, one at least.

    With `binomial` each row is one with this chance, so batches have more of them or fewer.
    """

    def __init__(self, context: Context, share: float, how: str) -> None:
        self.whose, self.share = context.key, share
        self.expected = "demos" in context.inputs  # whether batches hold some
        self.table: Batch | None = None
        self._rng = context.rng("demo_share") if how == "binomial" else None

    def push(self, demos: Batch) -> None:
        """Keep these for ever."""
        self.expected = True
        if len(demos):
            self.table = demos if self.table is None else Batch.concat([self.table, demos])

    def rows(self, batches: int, batch_size: int) -> list[int]:
        """How many rows of each batch are demonstrations."""
        if not self.expected:
            return [0] * batches
        if self._rng is not None:
            return [int(n) for n in self._rng.binomial(batch_size, self.share, batches)]
        return [max(1, round(batch_size * self.share))] * batches

    def join(
        self,
        agent: Mapping[str, Array],
        batch_size: int,
        rows: Sequence[int],
        draw: Draw,
        **fill: Any,
    ) -> dict[str, Array]:
        """`agent` holds the batches' other rows; what demonstrations lack of their columns is filled in.

        In each batch the agent's rows come first.
        """
        demos, most = self.table, max(rows)
        least = draw.least(most)
        if demos is None or len(demos) < least:
            raise ValueError(
                f"{self.whose}: a batch takes {most} demonstrations, {len(demos or ())} are held; "
                f"give it {least} at least"
            )
        index = draw(len(demos), rows)
        fill = {**dict.fromkeys(ORIGIN, -1), **fill}
        lacking = [name for name in fill if name in agent and name not in demos]
        more = {k: np.full(len(demos), fill[k], agent[k].dtype) for k in lacking}
        held = {**demos.columns, **more}
        is_demo = (np.arange(batch_size) >= batch_size - np.array(rows)[:, None]).reshape(-1)
        found = {name: _woven(array, held[name][index], is_demo) for name, array in agent.items()}
        return {**found, "is_demo": is_demo}

    def state_dict(self) -> dict[str, Any]:
        """All of them, and how the next shares are drawn."""
        return {
            "table": None if self.table is None else dict(self.table.columns),
            "rng": None if self._rng is None else self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold these instead."""
        self.table = None if state["table"] is None else Batch(state["table"])
        self.expected = self.expected or self.table is not None
        if self._rng is not None and state["rng"] is not None:
            self._rng.bit_generator.state = state["rng"]


def _woven(agent: Array, demos: Array, is_demo: Array) -> Array:
    """Rows of both, where they belong."""
    found = np.empty((len(is_demo), *agent.shape[1:]), agent.dtype)
    found[~is_demo], found[is_demo] = agent, demos
    return found
