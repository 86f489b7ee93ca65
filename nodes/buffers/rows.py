"""A part of each token's rows: so priorities find the buffer, or the shard, whose rows they are of."""

from __future__ import annotations

from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.node import Facts, Node, Surroundings, UnsoundError
from flowrl.core.ports import ANY, In, Out


class Rows(Node):
    """Gives `count` rows of each token from `first` on, as `parts` equal tokens.

    A fan-in joins the batches of several buffers, or of a buffer's replicas; this takes apart what
    the learner says of them. Tokens for replicas are dealt in turn, so the k-th part is the k-th's.
    """

    data = In(ANY)
    out = Out(ANY, rate="parts")

    class Config(BaseConfig):
        first: int = param(0, "the first row that it gives", ge=0)
        count: int | None = param(None, "how many rows it gives; default: all that follow", ge=1)
        parts: int = param(1, "equal tokens that these are cut into", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The columns are those of the data."""
        schema = surroundings.inputs["data"]
        if schema is None:
            raise UnsoundError("the data is not a table", "connect what gives rows")
        if config.count is not None and config.count % config.parts:
            what = f"{config.count} rows are not {config.parts} equal parts"
            raise UnsoundError(what, "take a multiple", "count")
        return Facts(outs={"out": schema})

    def fire(self, data: Batch) -> list[Batch]:
        """Views of the token."""
        c = self.config
        stop = len(data) if c.count is None else c.first + c.count
        if stop > len(data) or (stop - c.first) % c.parts or stop < c.first:
            raise ValueError(
                f"{self.ctx.key}: a token of {len(data)} rows came; rows {c.first} to {stop} are to "
                f"be cut into {c.parts} equal parts"
            )
        rows = (stop - c.first) // c.parts
        firsts = range(c.first, stop, max(rows, 1)) if rows else [c.first] * c.parts
        return [data.take(slice(k, k + rows)) for k in firsts]
