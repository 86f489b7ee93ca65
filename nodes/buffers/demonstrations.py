"""Demonstrations of a buffer: stored separately from its rows, and added to each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Schema, row_bytes
from flowrl.core.context import Context
from flowrl.core.node import Surroundings, UnsoundError
from flowrl.nodes.buffers.sampling.uniform import UniformSampler
from flowrl.nodes.nstep import NstepRule, with_summed_rewards
from flowrl.nodes.origin import ORIGIN_SCHEMA


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
    """The demonstrations of a buffer.

    With the mode `fixed`, `share` of each batch are demonstrations, and at least one row. With `binomial`, each row
    is one with the probability `share`, so their number varies from batch to batch.
    """

    def __init__(
        self,
        context: Context,
        share: float,
        mode: str,
        size: int | None = None,
        rule: NstepRule | None = None,
    ) -> None:
        """With `size`, so many demonstrations are kept, the newest. With a rule, rewards are summed."""
        self.node, self.share = context.key, share
        self.expected = "demos" in context.inputs  # whether batches contain demonstrations
        self.table: Batch | None = None
        self._size, self._rule = size, rule
        self._rng = context.rng("demo_share") if mode == "binomial" else None

    def push(self, demos: Batch) -> None:
        self.expected = True
        if not len(demos):
            return
        demos = demos if self._rule is None else with_summed_rewards(demos, self._rule)
        table = demos if self.table is None else Batch.concat([self.table, demos])
        if self._size is not None and len(table) > self._size:
            table = table.take(np.arange(len(table) - self._size, len(table)))
        self.table = table

    def no_rows(self) -> dict[str, Array]:
        """The columns of demonstrations, without any row."""
        return {} if self.table is None else {n: a[:0] for n, a in self.table.columns.items()}

    def rows_of_batches(self, batches: int, batch_size: int) -> list[int]:
        """Return how many rows of each batch are demonstrations."""
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
        sampler: UniformSampler,
        **defaults: Any,
    ) -> dict[str, Array]:
        """Append `rows[k]` demonstrations to the agent's rows of batch k.

        `agent` holds the agent's rows of all batches. A column that demonstrations lack is filled with a default:
        -1 for origin columns, and else the value in `defaults`.
        """
        demos, most = self.table, max(rows)
        required = sampler.required(most)
        if demos is None or len(demos) < required:
            raise ValueError(
                f"{self.node}: a batch takes {most} demonstrations, but {len(demos or ())} are held; "
                f"provide at least {required}"
            )
        index = sampler.draw(len(demos), rows)
        defaults = {**dict.fromkeys(ORIGIN_SCHEMA, -1), **defaults}
        missing = [name for name in defaults if name in agent and name not in demos]
        filled = {k: np.full(len(demos), defaults[k], agent[k].dtype) for k in missing}
        columns = {**demos.columns, **filled}
        is_demo = (np.arange(batch_size) >= batch_size - np.array(rows)[:, None]).reshape(-1)
        joined = {
            name: _merge(array, columns[name][index], is_demo) for name, array in agent.items()
        }
        return {**joined, "is_demo": is_demo}

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


def _merge(agent: Array, demos: Array, is_demo: Array) -> Array:
    """Merge a column: demonstrations where `is_demo` is true, the agent's rows elsewhere, both in order."""
    merged = np.empty((len(is_demo), *agent.shape[1:]), agent.dtype)
    merged[~is_demo], merged[is_demo] = agent, demos
    return merged
