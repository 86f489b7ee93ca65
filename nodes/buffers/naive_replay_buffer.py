"""The naive replay buffer: keeps the newest rows, and draws them uniformly."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from flowrl.core.batch import Array, Batch, Column, Rows, as_batch
from flowrl.core.config import param
from flowrl.core.facts import Facts, Surroundings
from flowrl.nodes.buffers.counters import summary_metrics
from flowrl.nodes.buffers.demonstrations import (
    Demonstrations,
    DemosConfig,
    check_demos,
    demo_bytes,
    joined_with_demos,
    required_columns,
)
from flowrl.nodes.buffers.pacing import check_uniform_pacing
from flowrl.nodes.buffers.replay_buffer import RowReplayBuffer
from flowrl.nodes.buffers.row_windows import WindowFacts, window_metadata
from flowrl.nodes.buffers.sampling.priority_feedback import (
    COUNTS_BATCHES,
    PriorityTokens,
    as_tokens,
    priorities_port,
)
from flowrl.nodes.buffers.sampling.uniform import shortage_error
from flowrl.nodes.buffers.storage.plan import StoragePlan, input_schema, make_ring
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.transforms.transform import check_transforms
from flowrl.nodes.origin import collected_at

ROW_METADATA = {"train_iters": "int32"}  # those of the weights that collected the row
ROW_METADATA_BYTES = 4


class NaiveReplayBuffer(RowReplayBuffer):
    """Draws rows uniformly, with or without replacement."""

    priorities = priorities_port(COUNTS_BATCHES)

    class Config(RowReplayBuffer.Config, DemosConfig):
        demo_draw: Literal["fixed", "binomial"] = param(
            "fixed",
            "fixed: every batch has the same number of demonstrations; binomial: each row is one with "
            "probability `demo_share`",
            only_with="demos",
        )
        replace: bool = param(True, "a batch may contain a row twice (faster)")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        schema, with_demos = input_schema(surroundings), "demos" in surroundings.inputs
        pacing = check_uniform_pacing(config, surroundings, surroundings.rows.get("data"))
        windows = WindowFacts.of(config, surroundings)
        check_transforms(config.transforms, schema)
        check_demos(config, surroundings)
        row_bytes = ROW_METADATA_BYTES + windows.row_bytes
        plan = StoragePlan(config, schema, row_bytes, surroundings.rows.get("data"))
        drawn = windows.drawn
        return Facts(
            outs={"batches": {**drawn, "is_demo": Column("bool")} if with_demos else drawn},
            rows={"batches": config.batch_size},
            ordered={"batches": False},
            replays=frozenset({"batches"}),
            needs_order=frozenset({"data"} if config.transforms or windows.rule else ()),
            needs={"demos": required_columns(schema)} if with_demos else {},
            needs_rows={"data": (config.batch_size + windows.most_waiting, "batch_size")},
            memory_bytes=plan.memory_bytes(row_bytes) + demo_bytes(config, surroundings),
            state_bytes=plan.state_bytes(row_bytes),
            live_state_bytes=plan.state_bytes(ROW_METADATA_BYTES),
            checks_numbers=not config.transforms,
            nondeterministic=plan.nondeterministic(pacing),
        )

    def _make_ring(self) -> Ring:
        metadata = {**ROW_METADATA, **window_metadata(self._rule)}
        return make_ring(self.config, self.ctx, partial(Ring, metadata=metadata))

    def _make_demos(self) -> Demonstrations:
        return Demonstrations(self.ctx, self.config, self._demo_rule())

    def fire(
        self, data: Batch | None, demos: Batch | None = None, priorities: PriorityTokens = None
    ) -> list[Batch]:
        """Store the rows that arrived, and draw the batches that are due."""
        self.pacer.count_learned(as_tokens(priorities))
        if demos is not None:
            self.push_demos(demos)
        if data is not None:
            self.pacer.check_insert(self.push(data))
        return self.draw_due()

    def push(self, data: Batch | Rows) -> int:
        """Store rows, which replace the oldest; return their number."""
        data = as_batch(f"{self.ctx.key}.push", data)
        first = self.ring.written
        self.ring.push(data.columns, train_iters=collected_at(data.columns, self.ctx.clock))
        self._windows.push(data.columns, first)
        self._transforms.push(data.columns, first)
        self.counters.pushes += 1
        self.counters.pushed += len(data)
        return len(data)

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """Draw all batches in one gather. In each, demonstrations follow the agent's rows."""
        demo_rows = self._demos.rows_of_batches(batches, batch_size, self.config.demo_share)
        if self.has_only_demos:
            demo_rows, columns = [batch_size] * batches, self._no_rows()
        else:
            columns = self._draw_columns([batch_size - n for n in demo_rows])
        if self._demos.expected:
            most = max(demo_rows)
            self._demos.require(most, self._sampler.required(most))
            index = self._sampler.draw(self._demos.count, demo_rows)
            demos = self._demos.take(index, columns)
            columns = joined_with_demos(columns, demos, batch_size, demo_rows)
        self.counters.sampled += batches * batch_size
        return Batch(columns).split(batches)

    def _draw_columns(self, rows: Sequence[int]) -> dict[str, Array]:
        """Draw `rows[k]` of the agent's rows for batch k."""
        if self.count < max(1, *rows):
            raise shortage_error(self.ctx.key, max(rows), self.count)
        drawn = self._sampler.draw(self.count, rows)
        self._last_places = self._windows.places_of_drawable(drawn)
        return self._transforms.take(self._last_places)

    @property
    def count(self) -> int:
        """The number of the agent's rows that can be drawn."""
        return self._windows.count

    def metrics(self) -> dict[str, float]:
        """Return the counters, and the age of the rows of the newest draw."""
        return {
            **self.counters.metrics("rows", self.ring.row_count),
            **self._windows.metrics(),
            **summary_metrics(self.measured()),
        }

    def measured(self) -> dict[str, Array]:
        arrived = self.ring.metadata["train_iters"][self._last_places]
        return {"age_iters": self.ctx.clock.total.train_iters - arrived}
