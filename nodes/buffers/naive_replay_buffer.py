"""The naive replay buffer: the newest rows, drawn uniformly, and demonstrations beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from flowrl.batch import Batch, Column
from flowrl.config import param, parts
from flowrl.node import Facts, Known, Node
from flowrl.nodes.buffers.demonstrations import Demonstrations, needed
from flowrl.nodes.buffers.described import (
    memory_bytes,
    nondeterministic,
    ring_for,
    sound_size,
    stored_bytes,
    table_schema,
)
from flowrl.nodes.buffers.draws import Draw, cut, too_few, wanted
from flowrl.nodes.buffers.feedback import Tokens, listed, no_priorities
from flowrl.nodes.buffers.firing import fired
from flowrl.nodes.buffers.pace import pace_of
from flowrl.nodes.buffers.settings import Pacing, sound_uniform_pace
from flowrl.nodes.buffers.tally import Tally, spread
from flowrl.nodes.buffers.transforms.transform import Transforms, sound_transforms
from flowrl.ports import AUTO, In, Out


class NaiveReplayBuffer(Node):
    """Demonstrations are kept apart: data never evicts them; they are a batch's last rows."""

    fires_on = "samples_per_insert"
    data = In("samples")
    demos = In("samples", optional=True, about="kept for ever, beside the agent's rows")
    priorities = In(
        "priorities",
        rate=AUTO,
        optional=True,
        initial=no_priorities,
        about="free-running: each says that a batch is done; draws stay uniform",
    )
    batches = Out("samples", rate="updates_per_push")

    class Config(Pacing):
        transforms: Any = parts("transform", "what is done to rows when they are drawn")
        batch_size: int = param(64, "rows in each batch", ge=1)
        demo_share: float = param(0.25, "share of a batch that is demonstrations", gt=0, le=1)
        demo_draw: Literal["fixed", "binomial"] = param(
            "fixed", "always as many, or each row drawn to be one with this chance"
        )
        replace: bool = param(True, "a batch may hold a row twice (faster)")

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        """Memory, the rows it must have first, and the columns, which are those of the data."""
        schema, with_demos = table_schema(known), "demos" in known.inputs
        free = sound_uniform_pace(config, known)
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

    def setup(self) -> None:
        """The rows, and beside each the train iteration of its data."""
        c = self.config
        self._rows = ring_for(c, self.ctx, {"train_iters": "int32"})
        self._transforms = Transforms(c.transforms, self._rows, self.ctx.rng("transforms"))
        self._demos = Demonstrations(self.ctx, c.demo_share, c.demo_draw)
        self._draw = Draw(self.ctx.rng("sample"), c.replace)
        self._last = np.empty(0, np.int64)  # places of the newest draw
        self.tally, self.pace = Tally(), pace_of(c, self.ctx)

    def fire(
        self, data: Batch | None, demos: Batch | None = None, priorities: Tokens = None
    ) -> list[Batch]:
        """Keep what came, then draw the batches that are due together."""
        if demos is not None:
            self.push_demos(demos)
        return fired(self, data, listed(priorities))

    @property
    def count(self) -> int:
        """The agent's rows that are held."""
        return self._rows.rows

    def push(self, data: Batch) -> None:
        """Keep these rows; they replace the oldest."""
        first = self._rows.written
        self._rows.push(data.columns, train_iters=self.ctx.clock.total.train_iters)
        self._transforms.pushed(data.columns, first)
        self.tally.pushes += 1
        self.tally.pushed += len(data)

    def push_demos(self, demos: Batch) -> None:
        """Keep these demonstrations for ever."""
        self._demos.push(demos)

    def sample(self, batch_size: int | None = None) -> Batch:
        """By hand: one batch."""
        return self.draw(1, wanted(self.ctx.key, batch_size, self.config.batch_size))[0]

    def rows(self) -> Batch:
        """All of the agent's rows that are held, the oldest first: a data set."""
        return Batch(self._rows.in_order())

    def flush(self) -> None:
        """Where rows outlive the process (`storage: mapped`): those that are held now will."""
        self._rows.flush()

    def close(self) -> None:
        """The same, and nothing can be pushed or drawn any more."""
        self._rows.close()

    def clear(self) -> None:
        """Forget the agent's rows; demonstrations stay."""
        self._rows.clear()
        self._transforms.clear()

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

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        return {
            "rows": self._rows.state_dict(),
            "transforms": self._transforms.state_dict(),
            "demos": self._demos.state_dict(),
            "last": self._last,
            "tally": self.tally.state(),
            "pace": self.pace.state(),
            "rng": self._draw.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._rows.load_state_dict(state["rows"])
        self._transforms.load_state_dict(state["transforms"])
        self._demos.load_state_dict(state["demos"])
        self._last = np.array(state["last"])
        self.tally = Tally(*state["tally"])
        self.pace.load(state["pace"])
        self._draw.rng.bit_generator.state = state["rng"]
