"""The naive replay buffer: the newest rows, drawn uniformly, and demonstrations beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowrl.batch import Batch, Column
from flowrl.config import Config as BaseConfig
from flowrl.config import param
from flowrl.node import Facts, Known, Node
from flowrl.nodes.buffers.capacity import PATTERN
from flowrl.nodes.buffers.demonstrations import Demonstrations
from flowrl.nodes.buffers.described import once_for, sound_size, stored_bytes, table_schema
from flowrl.nodes.buffers.draws import Draw, cut, too_few
from flowrl.nodes.buffers.ring import Ring
from flowrl.ports import In, Out


class NaiveReplayBuffer(Node):
    """Demonstrations are kept apart: data never evicts them; they are a batch's last rows."""

    data = In("samples")
    demos = In("samples", optional=True, about="kept for ever, beside the agent's rows")
    batches = Out("samples", rate="updates_per_push")

    class Config(BaseConfig):
        size: int = param(20_000, "rows that are kept; newer ones replace the oldest", ge=1)
        size_bytes: str | None = param(None, "and no more than so much: 800MB", pattern=PATTERN)
        store_once: bool | None = param(None, "of equal frames one; default: of stacked frames")
        frames: int | None = param(None, "frames on axis 0 of obs; default: as the env says", ge=1)
        batch_size: int = param(64, "rows in each batch", ge=1)
        updates_per_push: int = param(1, "batches for each token that comes in", ge=1)
        demo_share: float = param(0.25, "share of a batch that is demonstrations", gt=0, le=1)
        replace: bool = param(True, "a batch may hold a row twice (faster)")
        log_every_pushes: int = param(100, "tokens from one line of metrics to the next", ge=1)

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        """Memory, the rows it must have first, and the columns, which are those of the data."""
        schema, with_demos = table_schema(known), "demos" in known.inputs
        bytes_of_row = stored_bytes(config, schema) + 4
        size = sound_size(config, bytes_of_row)
        return Facts(
            outs={"batches": {**schema, "is_demo": Column("bool")} if with_demos else schema},
            rows={"batches": config.batch_size},
            needs={"demos": schema} if with_demos else {},
            needs_rows={"data": (config.batch_size, "batch_size")},
            memory_bytes=size * bytes_of_row,
        )

    def setup(self) -> None:
        """The rows, and beside each the train iteration of its data."""
        self._rows = Ring(
            self.config.size,
            self.config.size_bytes,
            {"train_iters": "int32"},
            once_for(self.config, self.ctx.inputs.get("data")),
        )
        self._demos = Demonstrations(
            self.ctx.key, self.config.demo_share, "demos" in self.ctx.inputs
        )
        self._draw = Draw(self.ctx.rng("sample"), self.config.replace)
        self._pushes = self._pushed = self._sampled = 0

    def fire(self, data: Batch, demos: Batch | None) -> list[Batch]:
        """Keep what came, then draw this round's batches together."""
        self.push(data)
        if demos is not None:
            self.push_demos(demos)
        if not self.ctx.wants("batches"):
            return []
        batches = self._batches(self.config.updates_per_push, self.config.batch_size)
        if self._pushes % self.config.log_every_pushes == 0:
            self.ctx.metrics(self._metrics())
        return batches

    @property
    def count(self) -> int:
        """The agent's rows that are held."""
        return self._rows.rows

    def push(self, data: Batch) -> None:
        """Keep these rows; they replace the oldest."""
        self._rows.push(data.columns, train_iters=self.ctx.clock.total.train_iters)
        self._pushes += 1
        self._pushed += len(data)

    def push_demos(self, demos: Batch) -> None:
        """Keep these demonstrations for ever."""
        self._demos.push(demos)

    def sample(self, batch_size: int | None = None) -> Batch:
        """By hand: one batch."""
        return self._batches(1, batch_size or self.config.batch_size)[0]

    def rows(self) -> Batch:
        """All of the agent's rows that are held, the oldest first: a data set."""
        return Batch(self._rows.in_order())

    def clear(self) -> None:
        """Forget the agent's rows; demonstrations stay."""
        self._rows.clear()

    def _batches(self, batches: int, batch_size: int) -> list[Batch]:
        demo_rows = self._demos.rows(batch_size)
        agent_rows = batch_size - demo_rows
        if self.count < max(1, agent_rows):
            raise too_few(self.ctx.key, agent_rows, self.count)
        self._index = self._draw(self.count, batches, agent_rows)
        columns = self._rows.take(self._index)
        if demo_rows:
            columns = self._demos.join(columns, batches, demo_rows, self._draw)
        self._sampled += batches * batch_size
        return cut(columns, batches, batch_size)

    def _metrics(self) -> dict[str, float]:
        drawn = self._rows.notes["train_iters"][self._index]
        return {
            "rows": self.count,
            "pushed_rows": self._pushed,
            "sampled_rows": self._sampled,
            "age_mean_iters": self.ctx.clock.total.train_iters - float(drawn.mean()),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        return {
            "rows": self._rows.state_dict(),
            "demos": self._demos.state_dict(),
            "counters": (self._pushes, self._pushed, self._sampled),
            "rng": self._draw.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._rows.load_state_dict(state["rows"])
        self._demos.load_state_dict(state["demos"])
        self._pushes, self._pushed, self._sampled = state["counters"]
        self._draw.rng.bit_generator.state = state["rng"]
