"""Demonstrations of a buffer: stored separately from its rows, and added to each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Schema, row_bytes
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.nstep import NstepRule, with_summed_rewards
from flowrl.nodes.origin import ORIGIN_SCHEMA


class DemosConfig(BaseConfig):
    """The parameters of demonstrations in every kind of buffer."""

    demo_share: float = param(
        0.25, "share of a batch that is demonstrations", gt=0, le=1, only_with="demos"
    )
    demo_size: int | None = param(
        None,
        "demonstrations that are kept, of which newer ones replace the oldest; null: all of a dataset",
        ge=1,
        only_with="demos",
    )


def check_demos(config: Any, surroundings: Surroundings) -> None:
    """Refuse demonstrations of an expert that goes on, if nothing bounds their number."""
    if "demos" in surroundings.live_inputs and config.demo_size is None:
        what = "demonstrations that an expert collects during the run would grow for ever"
        raise UnsoundError(what, "write `demo_size: 10_000`; it keeps the newest", "demo_size")


def demo_bytes(config: Any, surroundings: Surroundings) -> int:
    """Return the memory of demonstrations. Those of a dataset are counted there."""
    schema = surroundings.inputs.get("demos")
    return 0 if schema is None or config.demo_size is None else config.demo_size * row_bytes(schema)


def required_columns(schema: Schema) -> Schema:
    """Return the columns that demonstrations must have, which are all columns of the rows but the origin columns."""
    return {name: column for name, column in schema.items() if name not in ORIGIN_SCHEMA}


class Demonstrations:
    """The demonstrations of a buffer, which are drawn uniformly.

    With `demo_draw: fixed`, a share of each batch are demonstrations, and at least one row. With `binomial`, each row
    is one with this probability, so their number varies from batch to batch.
    """

    def __init__(self, context: Context, config: Any, rule: NstepRule | None = None) -> None:
        """With a rule, rewards are summed."""
        self.node = context.key
        self.expected = "demos" in context.inputs  # whether batches contain demonstrations
        self.table: Batch | None = None
        self._mode, self._size = config.demo_draw, config.demo_size
        self._rule = rule
        self._rng = context.rng("demo_share") if self._mode != "fixed" else None

    def push(self, demos: Batch) -> int:
        """Add demonstrations; return their number. Of more than `demo_size`, the newest are kept."""
        self.expected = True
        if not len(demos):
            return 0
        demos = demos if self._rule is None else with_summed_rewards(demos, self._rule)
        table = demos if self.table is None else Batch.concat([self.table, demos])
        if self._size is not None and len(table) > self._size:
            table = table.take(np.arange(len(table) - self._size, len(table)))
        self.table = table
        return len(demos)

    def no_rows(self) -> dict[str, Array]:
        """The columns of demonstrations, without any row."""
        return {} if self.table is None else {n: a[:0] for n, a in self.table.columns.items()}

    def rows_of_batches(self, batches: int, batch_size: int, share: float) -> list[int]:
        """Return how many rows of each batch are demonstrations, if this share of all rows are."""
        if not self.expected:
            return [0] * batches
        if self._rng is not None:
            return [int(n) for n in self._rng.binomial(batch_size, share, batches)]
        return [max(1, round(batch_size * share))] * batches

    @property
    def count(self) -> int:
        """The number of demonstrations that can be drawn."""
        return len(self.table or ())

    def require(self, most: int, required: int) -> None:
        """Refuse a draw of `most` demonstrations for a batch if fewer than `required` are held."""
        if self.count < max(1, required):
            raise ValueError(
                f"{self.node}: a batch takes {most} demonstrations, but {self.count} are held; "
                f"provide at least {max(1, required)}"
            )

    def take(self, index: Array, agent: Mapping[str, Array]) -> dict[str, Array]:
        """Return the demonstrations at `index`, with the columns of the agent's rows. Origin columns are -1."""
        assert self.table is not None
        return {
            name: self.table[name][index]
            if name in self.table
            else np.full((len(index), *like.shape[1:]), -1, like.dtype)
            for name, like in agent.items()
            if name in self.table or name in ORIGIN_SCHEMA
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "table": None if self.table is None else dict(self.table.columns),
            "rng": None if self._rng is None else self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.table = None if state["table"] is None else Batch(state["table"])
        self.expected = self.expected or self.table is not None
        if self._rng is not None and state["rng"] is not None:
            self._rng.bit_generator.state = state["rng"]


def joined_with_demos(
    agent: Mapping[str, Array], demos: Mapping[str, Array], batch_size: int, rows: Sequence[int]
) -> dict[str, Array]:
    """Append `rows[k]` demonstrations to the agent's rows of batch k; `is_demo` marks them.

    Both tables have the rows of all batches, in order.
    """
    is_demo = (np.arange(batch_size) >= batch_size - np.array(rows)[:, None]).reshape(-1)
    joined = {name: _merge(array, demos[name], is_demo) for name, array in agent.items()}
    return {**joined, "is_demo": is_demo}


def _merge(agent: Array, demos: Array, is_demo: Array) -> Array:
    """Merge a column: demonstrations where `is_demo` is true, the agent's rows elsewhere, both in order."""
    merged = np.empty((len(is_demo), *agent.shape[1:]), agent.dtype)
    merged[~is_demo], merged[is_demo] = agent, demos
    return merged
