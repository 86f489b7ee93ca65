"""A node that selects and splits the rows of tokens, to send priorities to the buffer or shard that they belong to."""

from __future__ import annotations

from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import ANY, In, Out
from flowrl.core.row_order import with_marked_end


class RowSplitter(Node):
    """Emits `count` rows of each token, from `first` on, as `parts` tokens of equal size (type `rows`).

    A fan-in joins the batches of several buffers, or of a buffer's replicas. This node splits the priorities that
    the learner sends back for the joined batch. Replicas receive tokens in turn, so the k-th part goes to the k-th
    replica.
    """

    may_end_run = False
    data = In(ANY)
    out = Out(ANY, rate="parts")

    class Config(BaseConfig):
        first: int = param(0, "the first row that is emitted", ge=0)
        count: int | None = param(
            None, "the number of rows that are emitted; default: all from `first` on", ge=1
        )
        parts: int = param(1, "tokens of equal size that the rows are split into", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        schema = surroundings.inputs["data"]
        if schema is None:
            raise UnsoundError("the data is not a table", "connect a node that emits rows")
        arriving, rows = surroundings.rows.get("data"), config.count
        if arriving is not None and arriving < config.first + (rows or 1):
            wanted = (
                f"rows from {config.first} on"
                if rows is None
                else f"rows {config.first} to {config.first + rows}"
            )
            what = f"a token has {arriving} rows, but {wanted} are to be emitted"
            raise UnsoundError(what, "rows count from 0", "first" if rows is None else "count")
        if rows is None and arriving is not None:
            rows = arriving - config.first
        if rows is not None and rows % config.parts:
            what = f"{rows} rows cannot be split into {config.parts} equal parts"
            key = "parts" if config.count is None else "count"
            raise UnsoundError(what, "take a number of rows that is a multiple of `parts`", key)
        return Facts(
            outs={"out": schema},
            rows={} if rows is None else {"out": rows // config.parts},
            cuts_episodes=frozenset({"out"}),
            checks_numbers=True,
        )

    def fire(self, data: Batch) -> list[Batch]:
        """Emit views of the token. Where one ends within an episode, its final row is marked as `last`."""
        c = self.config
        stop = len(data) if c.count is None else c.first + c.count
        if stop > len(data) or (stop - c.first) % c.parts or stop < c.first:
            raise ValueError(
                f"{self.ctx.key}: a token has {len(data)} rows, but rows {c.first} to {stop} are to be "
                f"split into {c.parts} equal parts"
            )
        rows = (stop - c.first) // c.parts
        starts = range(c.first, stop, max(rows, 1)) if rows else [c.first] * c.parts
        return [with_marked_end(data.take(slice(k, k + rows))) for k in starts]
