"""The queue: rows in the order in which they came, each given a fixed number of times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Batch, row_bytes
from flowrl.config import Config as BaseConfig
from flowrl.config import param
from flowrl.node import Facts, Known, Node, Unsound
from flowrl.nodes.buffers.described import table_schema
from flowrl.ports import In, Out


class QueueBuffer(Node):
    """First in, first out, for learners that want fresh rows; nothing is ever dropped."""

    data = In("samples")
    batches = Out("samples", rate="updates_per_push")

    class Config(BaseConfig):
        size: int = param(20_000, "rows that may wait; more stop the run", ge=1)
        batch_size: int = param(64, "rows in each batch", ge=1)
        updates_per_push: int = param(1, "batches for each token that comes in", ge=1)
        max_use: int = param(1, "how often each row is given", ge=1)
        log_every_pushes: int = param(100, "tokens from one line of metrics to the next", ge=1)

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        """The columns are those of the data."""
        if config.batch_size > config.size:
            what = f"batches of {config.batch_size} rows are taken from {config.size}"
            raise Unsound(what, "make `size` larger or `batch_size` smaller", "batch_size")
        schema = table_schema(known)
        return Facts(
            outs={"batches": schema},
            rows={"batches": config.batch_size},
            needs_rows={"data": (config.batch_size, "batch_size")},
            memory_bytes=config.size * row_bytes(schema),
        )

    def setup(self) -> None:
        """Rows that wait; rows of the batch that is given now, and how often it was."""
        self._waiting: list[Batch] = []
        self._current: Batch | None = None
        self._given = 0
        self._pushes = self._pushed = self._sampled = 0

    def fire(self, data: Batch) -> list[Batch]:
        """Put these behind the others, and give the oldest."""
        self.push(data)
        if not self.ctx.wants("batches"):
            return []
        batches = [self.sample() for _ in range(self.config.updates_per_push)]
        if self._pushes % self.config.log_every_pushes == 0:
            counts = {"pushed_rows": self._pushed, "sampled_rows": self._sampled}
            self.ctx.metrics({"rows": self.count, **counts})
        return batches

    @property
    def count(self) -> int:
        """Rows that wait."""
        return sum(map(len, self._waiting))

    def push(self, data: Batch) -> None:
        """Put these behind the others."""
        if self.count + len(data) > self.config.size:
            raise ValueError(
                f"{self.ctx.key}: {self.count} rows wait and {len(data)} came, which is more than "
                f"{self.config.size}; take more of them (`updates_per_push`, `batch_size`)"
            )
        if len(data):
            self._waiting.append(data)
        self._pushes += 1
        self._pushed += len(data)

    def sample(self, batch_size: int | None = None) -> Batch:
        """The next batch; each is given `max_use` times, then its rows have left."""
        if self._current is None:
            self._current = self._take(batch_size or self.config.batch_size)
        batch = self._current
        self._given += 1
        self._sampled += len(batch)
        if self._given == self.config.max_use:
            self._current, self._given = None, 0
        return batch

    def clear(self) -> None:
        """Forget all rows."""
        self._waiting, self._current, self._given = [], None, 0

    def _take(self, rows: int) -> Batch:
        if self.count < rows:
            raise ValueError(
                f"{self.ctx.key}: a batch takes {rows} rows, {self.count} wait; let more come in "
                "(the collector's `n_sample`), or take less"
            )
        first: list[Batch] = []
        while rows:  # only what is given is copied
            token = self._waiting.pop(0)
            first.append(token.take(slice(rows)))
            if len(token) > rows:
                self._waiting.insert(0, token.take(slice(rows, None)))
            rows -= len(first[-1])
        return Batch.concat(first)

    def state_dict(self) -> dict[str, Any]:
        """What waits, and what is given."""
        waiting = Batch.concat(self._waiting) if self._waiting else None
        return {
            "waiting": None if waiting is None else dict(waiting.columns),
            "current": None if self._current is None else dict(self._current.columns),
            "counters": (self._given, self._pushes, self._pushed, self._sampled),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        copied = {
            key: None
            if (table := state[key]) is None
            else Batch({k: np.array(v) for k, v in table.items()})
            for key in ("waiting", "current")
        }
        self._waiting = [] if copied["waiting"] is None else [copied["waiting"]]
        self._current = copied["current"]
        self._given, self._pushes, self._pushed, self._sampled = state["counters"]
