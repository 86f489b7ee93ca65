"""The queue: rows in the order in which they came, each given a fixed number of times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, row_bytes
from flowrl.core.config import param
from flowrl.core.node import Facts, Node, Surroundings, UnsoundError
from flowrl.core.ports import In, Out
from flowrl.nodes.buffers.described import table_schema
from flowrl.nodes.buffers.draws import wanted
from flowrl.nodes.buffers.firing import fired
from flowrl.nodes.buffers.pace import pace_of
from flowrl.nodes.buffers.settings import Giving
from flowrl.nodes.buffers.tally import Tally


class QueueBuffer(Node):
    """First in, first out, for learners that want fresh rows; nothing is ever dropped."""

    data = In("samples")
    batches = Out("samples", rate="updates_per_push")

    class Config(Giving):
        size: int = param(20_000, "rows that may wait; more stop the run", ge=1)
        batch_size: int = param(64, "rows in each batch", ge=1)
        max_use: int = param(1, "how often each row is given", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The columns are those of the data."""
        if config.batch_size > config.size:
            what = f"batches of {config.batch_size} rows are taken from {config.size}"
            raise UnsoundError(what, "make `size` larger or `batch_size` smaller", "batch_size")
        schema = table_schema(surroundings)
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
        self.tally, self.pace = Tally(), pace_of(self.config, self.ctx)

    def fire(self, data: Batch) -> list[Batch]:
        """Put these behind the others, and give the oldest."""
        return fired(self, data)

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
        self.tally.pushes += 1
        self.tally.pushed += len(data)

    def sample(self, batch_size: int | None = None) -> Batch:
        """The next batch; each is given `max_use` times, then its rows have left."""
        if self._current is None:
            self._current = self._take(wanted(self.ctx.key, batch_size, self.config.batch_size))
        batch = self._current
        self._given += 1
        self.tally.sampled += len(batch)
        if self._given == self.config.max_use:
            self._current, self._given = None, 0
        return batch

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """So many batches."""
        return [self.sample(batch_size) for _ in range(batches)]

    def metrics(self) -> dict[str, float]:
        """What went through."""
        return self.tally.metrics("rows", self.count)

    def rows(self) -> Batch:
        """All rows that wait, the next first: a data set."""
        return Batch.concat(self._waiting) if self._waiting else Batch({})

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
            "given": self._given,
            "tally": self.tally.state(),
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
        self._given = int(state["given"])
        self.tally = Tally(*state["tally"])
