"""The advanced replay buffer: draws by priority, and removes rows that are too old or were drawn often enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import param
from flowrl.core.node import Facts, Surroundings, UnsoundError
from flowrl.nodes.buffers.counters import summary_metrics
from flowrl.nodes.buffers.demonstrations import required_columns
from flowrl.nodes.buffers.pacing import check_pacing
from flowrl.nodes.buffers.replay_buffer import RowReplayBuffer
from flowrl.nodes.buffers.sampling.prioritised_ring import (
    ROW_METADATA,
    ROW_METADATA_BYTES,
    SAMPLER_BYTES,
    PrioritisedRing,
)
from flowrl.nodes.buffers.sampling.priority_feedback import (
    SETS_PRIORITIES,
    PendingBatches,
    PriorityTokens,
    apply_priorities,
    checked_priorities,
    priorities_port,
)
from flowrl.nodes.buffers.sampling.priority_samplers import importance_weights
from flowrl.nodes.buffers.sampling.uniform import (
    concatenate_columns,
    shortage_error,
    split_batches,
)
from flowrl.nodes.buffers.storage.plan import StoragePlan, input_schema, make_ring
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.transforms.transform import check_transforms
from flowrl.nodes.decays import linear_decay

BOOKKEEPING: Schema = {
    "row_id": Column("int64"),
    "priority": Column("float32"),
    "use": Column("int32"),
    "age_iters": Column("int32"),
    "pushed_steps": Column("int64"),
}


class AdvancedReplayBuffer(RowReplayBuffer):
    """Prioritised experience replay (Schaul et al. 2016).

    A round's batches are drawn together, with the priorities that the learner sent back in the previous round. A
    free-running buffer fires as soon as rows or priorities arrive.
    """

    priorities = priorities_port(SETS_PRIORITIES)

    class Config(RowReplayBuffer.Config):
        priority: Literal["proportional", "rank"] = param(
            "proportional", "draw in proportion to priorities, or to the inverse of their rank"
        )
        alpha: float = param(0.6, "how much priorities count; 0: draws are uniform", ge=0, le=10)
        beta: float = param(
            0.4, "how much `weight` corrects for priorities at the beginning", ge=0, le=1
        )
        beta_iters: int = param(100_000, "train iterations until it corrects fully", ge=1)
        priority_least: float = param(
            1e-5, "added to each priority, so that every row can be drawn", gt=0
        )
        max_use: int | None = param(None, "remove a row that was drawn so often", ge=1)
        max_staleness_iters: int | None = param(
            None, "remove a row that is older than so many train iterations", ge=0
        )
        replace: bool = param(True, "a batch may hold a row twice (faster, and stratified)")
        bookkeeping: bool = param(False, f"batches also have the columns {', '.join(BOOKKEEPING)}")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        if config.max_use is not None and config.replace:
            raise UnsoundError(
                "with `max_use` no batch may hold a row twice", "write `replace: false`", "replace"
            )
        schema, with_demos = input_schema(surroundings), "demos" in surroundings.inputs
        check_transforms(config.transforms, schema)
        plan = StoragePlan(config, schema, ROW_METADATA_BYTES)
        added = dict(BOOKKEEPING) if config.bookkeeping else {}
        added |= {"is_demo": Column("bool")} if with_demos else {}
        needs = {"demos": required_columns(schema), "priorities": {"priority": Column("float32")}}
        return Facts(
            outs={"batches": {**schema, "weight": Column("float32"), **added}},
            rows={"batches": config.batch_size},
            needs={port: need for port, need in needs.items() if port in surroundings.inputs},
            needs_rows={"data": (config.batch_size, "batch_size")},
            memory_bytes=plan.memory_bytes(ROW_METADATA_BYTES + SAMPLER_BYTES),
            nondeterministic=plan.nondeterministic(check_pacing(config, surroundings)),
        )

    def setup(self) -> None:
        super().setup()
        self._pending = PendingBatches(self.ctx.key, "priorities" in self.ctx.inputs)

    def _make_rows(self) -> PrioritisedRing:
        c = self.config
        return PrioritisedRing(make_ring(c, self.ctx, ROW_METADATA), c.priority, c.alpha)

    @property
    def _ring(self) -> Ring:
        return self._rows.ring

    def fire(
        self, data: Batch | None, demos: Batch | None, priorities: PriorityTokens
    ) -> list[Batch]:
        """Apply the priorities that arrived, store the rows that arrived, and draw the batches that are due."""
        self.pacer.count_learned(apply_priorities(priorities, self.update))
        if demos is not None:
            self.push_demos(demos)
        if data is not None:
            self.pacer.check_insert(self.push(data))
        return self.draw_due()

    def push(self, data: Batch) -> int:
        """Store rows over the oldest, with the highest priority so far: each is drawn soon."""
        first, now = self._ring.written, self.ctx.clock.total
        self._rows.push(data.columns, train_iters=now.train_iters, env_steps=now.env_steps)
        self._transforms.push(data.columns, first)
        self.counters.pushes += 1
        self.counters.pushed += len(data)
        return len(data)

    def update(self, priorities: Array, row_id: Array | None = None) -> None:
        """Set the priorities of the oldest batch that has none yet, or of the rows with these numbers.

        Rows that are gone are counted (`late_rows`). Demonstrations, whose number is -1, are skipped.
        """
        numbers = self._pending.pop_oldest() if row_id is None else row_id
        priorities = checked_priorities(self.ctx.key, priorities, numbers.shape)
        written = self._ring.written
        if row_id is not None and len(numbers) and numbers.max() >= written:
            known = f"rows 0 to {written - 1} were written" if written else "no row was written"
            raise ValueError(f"{self.ctx.key}: row {numbers.max()} does not exist; {known}")
        priorities = priorities + self.config.priority_least
        if self._demos.expected:
            is_agent_row = numbers >= 0
            numbers, priorities = numbers[is_agent_row], priorities[is_agent_row]
        self.counters.late += self._rows.update(numbers, priorities)

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """Draw batches in one gather: the agent's rows, then demonstrations."""
        if self.config.max_staleness_iters is not None:
            oldest = self.ctx.clock.total.train_iters - self.config.max_staleness_iters
            self._rows.remove_older(oldest)
        demo_rows = self._demos.rows_of_batches(batches, batch_size)
        agent_rows = [batch_size - n for n in demo_rows]
        # Without replacement, rows that one batch uses up must not be in the next one.
        together = self.config.replace and len(set(agent_rows)) == 1
        draws = [(batches, agent_rows[0])] if together else [(1, n) for n in agent_rows]
        columns = concatenate_columns([self._draw_columns(*draw) for draw in draws])
        if self._demos.expected:
            defaults = dict.fromkeys(BOOKKEEPING, 0) | {"weight": 1, "row_id": -1}
            columns = self._demos.join(columns, batch_size, demo_rows, self._sampler, **defaults)
        self._pending.add(columns["row_id"].reshape(batches, -1))
        if not self.config.bookkeeping:
            del columns["row_id"]
        self.counters.sampled += batches * batch_size
        return split_batches(columns, batches, batch_size)

    def _draw_columns(self, batches: int, rows: int) -> dict[str, Array]:
        """Draw the agent's rows of some batches, with their weights and bookkeeping."""
        prioritised = self._rows
        if prioritised.live < max(1, rows):
            raise shortage_error(self.ctx.key, rows, prioritised.live, expired=prioritised.removed)
        if self.config.replace:
            places, probability = prioritised.sampler.draw(self._sampler.rng, batches, rows)
        else:
            places, probability = prioritised.sampler.draw_distinct(self._sampler.rng, rows)
        now = self.ctx.clock.total.train_iters
        beta = linear_decay(self.config.beta, 1.0, self.config.beta_iters, now)
        weight = importance_weights(probability, prioritised.live, beta, rows)
        row_id = prioritised.ring.numbers_of(places)
        columns = {**self._transforms.take(places), "weight": weight, "row_id": row_id}
        columns |= self._bookkeeping_of(places)
        prioritised.count_use(places, self.config.max_use)
        self._last_places = places
        return columns

    def _bookkeeping_of(self, places: Array) -> dict[str, Array]:
        if not self.config.bookkeeping:
            return {}
        metadata = self._ring.metadata
        age = self.ctx.clock.total.train_iters - metadata["train_iters"][places]
        return {
            "priority": metadata["priority"][places],
            "use": metadata["use"][places],
            "age_iters": age.astype(np.int32),
            "pushed_steps": metadata["env_steps"][places],
        }

    @property
    def count(self) -> int:
        """The agent's rows that can be drawn."""
        return self._rows.live

    def metrics(self) -> dict[str, float]:
        """The counters, and statistics of the rows that were drawn last."""
        metadata, last = self._ring.metadata, self._last_places
        drawn = {
            "use": metadata["use"][last],
            "priority": metadata["priority"][last],
            "age_iters": self.ctx.clock.total.train_iters - metadata["train_iters"][last],
        }
        return {
            **self.counters.metrics("rows", self.count),
            "expired_rows": self._rows.removed,
            "late_rows": self.counters.late,
            **summary_metrics(drawn),
        }

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "pending": self._pending.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._pending.load_state_dict(state["pending"])
