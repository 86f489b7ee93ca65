"""The naive replay buffer: the newest rows, drawn uniformly, and demonstrations beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.batch import Array, Batch, Column, row_bytes
from flowrl.config import Config as BaseConfig
from flowrl.config import param
from flowrl.node import Facts, Known, Node, Unsound
from flowrl.nodes.buffers.ring import Ring
from flowrl.ports import In, Out


class NaiveReplayBuffer(Node):
    """Demonstrations are kept apart: data never evicts them; they are a batch's last rows."""

    data = In("samples")
    demos = In("samples", optional=True, about="kept for ever, beside the agent's rows")
    batches = Out("samples", rate="updates_per_push")

    class Config(BaseConfig):
        size: int = param(20_000, "rows that are kept; newer ones replace the oldest", ge=1)
        batch_size: int = param(64, "rows in each batch", ge=1)
        updates_per_push: int = param(1, "batches for each token that comes in", ge=1)
        demo_share: float = param(0.25, "share of a batch that is demonstrations", gt=0, le=1)
        replace: bool = param(True, "a batch may hold a row twice (faster)")
        log_every_pushes: int = param(100, "tokens from one line of metrics to the next", ge=1)

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        """Memory, the rows it must have first, and the columns, which are those of the data."""
        if config.batch_size > config.size:
            raise Unsound(
                f"batches of {config.batch_size} rows are drawn from {config.size}",
                "make `size` larger or `batch_size` smaller",
                "batch_size",
            )
        schema, with_demos = known.inputs["data"], "demos" in known.inputs
        if schema is None:
            raise Unsound("the data is not a table", "connect what gives samples")
        return Facts(
            outs={"batches": {**schema, "is_demo": Column("bool")} if with_demos else schema},
            rows={"batches": config.batch_size},
            needs={"demos": schema} if with_demos else {},
            needs_rows={"data": (config.batch_size, "batch_size")},
            memory_bytes=config.size * (row_bytes(schema) + 4),
        )

    def setup(self) -> None:
        """The rows, and beside each the train iteration of its data."""
        self._rows, self._iters = Ring(self.config.size), Ring(self.config.size)
        self._demos: Batch | None = None
        self._has_demos = "demos" in self.ctx.inputs
        self._rng = self.ctx.rng("sample")
        self._pushes = self._pushed = self._sampled = 0

    def fire(self, data: Batch, demos: Batch | None) -> list[Batch]:
        """Keep what came, then draw this round's batches together."""
        self.push(data)
        if demos is not None:
            self.push_demos(demos)
        if not self.ctx.wants("batches"):
            return []
        batches = self._draw(self.config.updates_per_push, self.config.batch_size)
        if self._pushes % self.config.log_every_pushes == 0:
            self.ctx.metrics(self._metrics())
        return batches

    @property
    def count(self) -> int:
        """The agent's rows that are held."""
        return self._rows.rows

    def push(self, data: Batch) -> None:
        """Keep these rows; they replace the oldest."""
        train_iters = self.ctx.clock.total.train_iters
        self._rows.push(data.columns)
        self._iters.push({"train_iters": np.full(len(data), train_iters, np.int32)})
        self._pushes += 1
        self._pushed += len(data)

    def push_demos(self, demos: Batch) -> None:
        """Keep these demonstrations for ever."""
        self._has_demos = True
        if len(demos):
            self._demos = demos if self._demos is None else Batch.concat([self._demos, demos])

    def sample(self, batch_size: int | None = None) -> Batch:
        """By hand: one batch."""
        return self._draw(1, batch_size or self.config.batch_size)[0]

    def clear(self) -> None:
        """Forget the agent's rows; demonstrations stay."""
        self._rows.clear()
        self._iters.clear()

    def _draw(self, batches: int, batch_size: int) -> list[Batch]:
        demo_rows = max(1, round(batch_size * self.config.demo_share)) if self._has_demos else 0
        agent_rows = batch_size - demo_rows
        if self.count < max(1, agent_rows):
            raise ValueError(
                f"{self.ctx.key}: a batch takes {agent_rows} rows, {self.count} are held; "
                "push more first (in a graph: a longer warm-up)"
            )
        self._index = self._choose(self.count, batches, agent_rows)
        columns = self._rows.take(self._index)
        if self._has_demos:
            columns = self._with_demos(columns, batches, demo_rows)
        self._sampled += batches * batch_size
        cuts = [slice(k * batch_size, (k + 1) * batch_size) for k in range(batches)]
        return [Batch({name: array[cut] for name, array in columns.items()}) for cut in cuts]

    def _choose(self, held: int, batches: int, rows: int) -> Array:
        if self.config.replace:
            return self._rng.integers(held, size=batches * rows)
        drawn = [self._rng.choice(held, rows, replace=False) for _ in range(batches)]
        return np.concatenate(drawn)

    def _with_demos(self, agent: Mapping[str, Array], batches: int, rows: int) -> dict[str, Array]:
        demos, least = self._demos, 1 if self.config.replace else rows
        if demos is None or len(demos) < least:
            raise ValueError(
                f"{self.ctx.key}: a batch takes {rows} demonstrations, "
                f"{len(demos or ())} are held; give it {least} at least"
            )
        index = self._choose(len(demos), batches, rows)
        columns = {
            name: _behind(array, demos[name][index], batches) for name, array in agent.items()
        }
        is_demo = np.repeat([False, True], [len(self._index) // batches, rows])
        return {**columns, "is_demo": np.tile(is_demo, batches)}

    def _metrics(self) -> dict[str, float]:
        drawn = self._iters.take(self._index)["train_iters"]
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
            "iters": self._iters.state_dict(),
            "demos": None if self._demos is None else dict(self._demos.columns),
            "counters": (self._pushes, self._pushed, self._sampled),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._rows.load_state_dict(state["rows"])
        self._iters.load_state_dict(state["iters"])
        self._demos = None if state["demos"] is None else Batch(state["demos"])
        self._has_demos = self._has_demos or self._demos is not None
        self._pushes, self._pushed, self._sampled = state["counters"]
        self._rng.bit_generator.state = state["rng"]


def _behind(agent: Array, demos: Array, batches: int) -> Array:
    """In each batch the agent's rows, then the demonstrations: (batches * rows, …)."""
    parts = [array.reshape(batches, -1, *array.shape[1:]) for array in (agent, demos)]
    joined = np.concatenate(parts, axis=1)
    return joined.reshape(-1, *joined.shape[2:])
