"""The naive replay buffer: the newest rows, drawn uniformly, and demonstrations beside them."""

from __future__ import annotations

from typing import Any

from flowrl.core.batch import Batch, Column
from flowrl.core.config import param
from flowrl.core.node import Facts, Surroundings
from flowrl.nodes.buffers.demonstrations import needed
from flowrl.nodes.buffers.described import (
    memory_bytes,
    nondeterministic,
    ring_for,
    sound_size,
    stored_bytes,
    table_schema,
)
from flowrl.nodes.buffers.draws import cut, too_few
from flowrl.nodes.buffers.feedback import COUNTED, Tokens, listed, priorities_in
from flowrl.nodes.buffers.ring import Ring
from flowrl.nodes.buffers.row_replay_buffer import RowReplayBuffer
from flowrl.nodes.buffers.settings import sound_uniform_pace
from flowrl.nodes.buffers.tally import spread
from flowrl.nodes.buffers.transforms.transform import sound_transforms


class NaiveReplayBuffer(RowReplayBuffer):
    """The newest rows, drawn uniformly."""

    priorities = priorities_in(COUNTED)

    class Config(RowReplayBuffer.Config):
        replace: bool = param(True, "a batch may hold a row twice (faster)")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Memory, the rows it must have first, and the columns, which are those of the data."""
        schema, with_demos = table_schema(surroundings), "demos" in surroundings.inputs
        free = sound_uniform_pace(config, surroundings)
        sound_transforms(config.transforms, schema)
        bytes_of_row = stored_bytes(config, schema) + 4
        size = sound_size(config, bytes_of_row)
        return Facts(
            outs={"batches": {**schema, "is_demo": Column("bool")} if with_demos else schema},
            rows={"batches": config.batch_size},
            needs={"demos": needed(schema)} if with_demos else {},
            needs_rows={"data": (config.batch_size, "batch_size")},
            memory_bytes=memory_bytes(config, schema, size, beside=4),
            nondeterministic=nondeterministic(config, free),
        )

    def _keep(self) -> Ring:
        """Beside each row the train iteration of its data."""
        return ring_for(self.config, self.ctx, {"train_iters": "int32"})

    @property
    def _ring(self) -> Ring:
        return self._rows

    def fire(
        self, data: Batch | None, demos: Batch | None = None, priorities: Tokens = None
    ) -> list[Batch]:
        """Keep what came, then draw the batches that are due together."""
        if demos is not None:
            self.push_demos(demos)
        return self._fired(data, listed(priorities))

    @property
    def count(self) -> int:
        """The agent's rows that are held."""
        return self._rows.rows

    def _write(self, data: Batch) -> None:
        self._rows.push(data.columns, train_iters=self.ctx.clock.total.train_iters)

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """So many batches, in one gather."""
        demo_rows = self._demos.rows(batches, batch_size)
        agent_rows = [batch_size - n for n in demo_rows]
        if self.count < max(1, *agent_rows):
            raise too_few(self.ctx.key, max(agent_rows), self.count)
        self._last = self._rows.places_from_oldest(self._draw(self.count, agent_rows))
        columns = self._transforms.take(self._last)
        if self._demos.expected:
            columns = self._demos.join(columns, batch_size, demo_rows, self._draw)
        self.tally.sampled += batches * batch_size
        return cut(columns, batches, batch_size)

    def metrics(self) -> dict[str, float]:
        """What went through, and how old the rows are that were drawn last."""
        age = self.ctx.clock.total.train_iters - self._rows.notes["train_iters"][self._last]
        return {**self.tally.metrics("rows", self.count), **spread({"age_iters": age})}
