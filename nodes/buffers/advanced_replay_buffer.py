"""The advanced replay buffer: prioritised draws, and rows that leave when they are stale or used up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import param
from flowrl.core.node import Facts, Surroundings, UnsoundError
from flowrl.nodes.buffers.demonstrations import needed
from flowrl.nodes.buffers.described import (
    memory_bytes,
    nondeterministic,
    ring_for,
    sound_size,
    stored_bytes,
    table_schema,
)
from flowrl.nodes.buffers.draws import cut, joined, too_few
from flowrl.nodes.buffers.feedback import (
    LEARNED,
    Outstanding,
    Tokens,
    priorities_in,
    sound_priorities,
    taken,
)
from flowrl.nodes.buffers.prioritised_rows import NOTED_BYTES, NOTES, PrioritisedRows
from flowrl.nodes.buffers.ring import Ring
from flowrl.nodes.buffers.row_replay_buffer import RowReplayBuffer
from flowrl.nodes.buffers.settings import sound_pace
from flowrl.nodes.buffers.strata import importance
from flowrl.nodes.buffers.tally import spread
from flowrl.nodes.buffers.transforms.transform import sound_transforms
from flowrl.nodes.decays import linear_decay

DRAWN_BYTES = 10  # of a place: its weight, and its part of the sums above
BOOKKEEPING: Schema = {
    "row_id": Column("int64"),
    "priority": Column("float32"),
    "use": Column("int32"),
    "age_iters": Column("int32"),
    "pushed_steps": Column("int64"),
}


class AdvancedReplayBuffer(RowReplayBuffer):
    """Prioritised experience replay (Schaul et al. 2016).

    A round's batches are drawn together, from the priorities that came back for the round before.
    Free-running it fires as soon as rows or priorities come, and keeps a band by waiting.
    """

    priorities = priorities_in(LEARNED)

    class Config(RowReplayBuffer.Config):
        priority: Literal["proportional", "rank"] = param("proportional", "what a priority says")
        alpha: float = param(0.6, "how much priorities count; 0: draws are uniform", ge=0, le=10)
        beta: float = param(0.4, "how much `weight` corrects for that in the beginning", ge=0, le=1)
        beta_iters: int = param(100_000, "train iterations until it corrects for all of it", ge=1)
        priority_least: float = param(1e-5, "is added to each priority: all are drawn", gt=0)
        max_use: int | None = param(None, "a row leaves when it was drawn so often", ge=1)
        max_staleness_iters: int | None = param(None, "a row leaves when it is older", ge=0)
        replace: bool = param(True, "a batch may hold a row twice (faster, and stratified)")
        bookkeeping: bool = param(False, f"batches also tell {', '.join(BOOKKEEPING)}")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Memory, the rows it must have first, and the columns: those of the data, and weights."""
        if config.max_use is not None and config.replace:
            raise UnsoundError(
                "with `max_use` no batch may hold a row twice", "write `replace: false`", "replace"
            )
        schema, with_demos = table_schema(surroundings), "demos" in surroundings.inputs
        sound_transforms(config.transforms, schema)
        bytes_of_row = stored_bytes(config, schema) + NOTED_BYTES
        size = sound_size(config, bytes_of_row)
        more = dict(BOOKKEEPING) if config.bookkeeping else {}
        more |= {"is_demo": Column("bool")} if with_demos else {}
        needs = {"demos": needed(schema), "priorities": {"priority": Column("float32")}}
        return Facts(
            outs={"batches": {**schema, "weight": Column("float32"), **more}},
            rows={"batches": config.batch_size},
            needs={port: need for port, need in needs.items() if port in surroundings.inputs},
            needs_rows={"data": (config.batch_size, "batch_size")},
            memory_bytes=memory_bytes(config, schema, size, NOTED_BYTES + DRAWN_BYTES),
            nondeterministic=nondeterministic(config, sound_pace(config, surroundings)),
        )

    def setup(self) -> None:
        """The batches whose priorities are still to come, beside the rows."""
        super().setup()
        self._outstanding = Outstanding(self.ctx.key, "priorities" in self.ctx.inputs)

    def _keep(self) -> PrioritisedRows:
        c = self.config
        return PrioritisedRows(ring_for(c, self.ctx, NOTES), c.priority, c.alpha)

    @property
    def _ring(self) -> Ring:
        return self._rows.ring

    def fire(self, data: Batch | None, demos: Batch | None, priorities: Tokens) -> list[Batch]:
        """Take the priorities that came, keep the rows that came, draw the batches that are due."""
        learned = taken(priorities, self.update)
        if demos is not None:
            self.push_demos(demos)
        return self._fired(data, learned)

    @property
    def count(self) -> int:
        """The agent's rows that can be drawn."""
        return self._rows.live

    def _write(self, data: Batch) -> None:
        """With the highest priority so far: each is seen soon."""
        now = self.ctx.clock.total
        self._rows.push(data.columns, train_iters=now.train_iters, env_steps=now.env_steps)

    def update(self, priorities: Array, row_id: Array | None = None) -> None:
        """Priorities of the oldest batch that has none yet, or of the rows with these numbers.

        Rows that have left meanwhile are counted (`late_rows`), demonstrations are passed over.
        """
        numbers = self._outstanding.oldest() if row_id is None else row_id
        priorities = sound_priorities(self.ctx.key, priorities, numbers.shape)
        if row_id is not None and len(numbers) and numbers.max() >= self._rows.ring.written:
            raise ValueError(f"{self.ctx.key}: there never was a row {numbers.max()}")
        priorities = priorities + self.config.priority_least
        if self._demos.expected:
            known = numbers >= 0
            numbers, priorities = numbers[known], priorities[known]
        self.tally.late += self._rows.update(numbers, priorities)

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """So many batches, in one gather."""
        if self.config.max_staleness_iters is not None:
            oldest = self.ctx.clock.total.train_iters - self.config.max_staleness_iters
            self._rows.remove_older(oldest)
        demo_rows = self._demos.rows(batches, batch_size)
        agent_rows = [batch_size - n for n in demo_rows]
        # Without replacement, what a batch uses up is not in the next one.
        together = self.config.replace and len(set(agent_rows)) == 1
        draws = [(batches, agent_rows[0])] if together else [(1, n) for n in agent_rows]
        columns = joined([self._drawn_columns(*draw) for draw in draws])
        if self._demos.expected:
            fill = dict.fromkeys(BOOKKEEPING, 0) | {"weight": 1, "row_id": -1}
            columns = self._demos.join(columns, batch_size, demo_rows, self._draw, **fill)
        self._outstanding.add(columns["row_id"].reshape(batches, -1))
        if not self.config.bookkeeping:
            del columns["row_id"]
        self.tally.sampled += batches * batch_size
        return cut(columns, batches, batch_size)

    def _drawn_columns(self, batches: int, rows: int) -> dict[str, Array]:
        """The rows of some batches, their weights, and what is known of them."""
        held = self._rows
        if held.live < max(1, rows):
            raise too_few(self.ctx.key, rows, held.live, expired=held.removed)
        if self.config.replace:
            places, chance = held.priorities.draw(self._draw.rng, batches, rows)
        else:
            places, chance = held.priorities.draw_distinct(self._draw.rng, rows)
        now = self.ctx.clock.total.train_iters
        beta = linear_decay(self.config.beta, 1.0, self.config.beta_iters, now)
        weight = importance(chance, held.live, beta, rows)
        told = {"weight": weight, "row_id": held.ring.numbers_of(places)}
        columns = {**self._transforms.take(places), **told, **self._noted(places)}
        held.use(places, self.config.max_use)
        self._last = places
        return columns

    def _noted(self, places: Array) -> dict[str, Array]:
        if not self.config.bookkeeping:
            return {}
        notes = self._rows.ring.notes
        age = self.ctx.clock.total.train_iters - notes["train_iters"][places]
        return {
            "priority": notes["priority"][places],
            "use": notes["use"][places],
            "age_iters": age.astype(np.int32),
            "pushed_steps": notes["env_steps"][places],
        }

    def metrics(self) -> dict[str, float]:
        """What went through, and what is known of the rows that were drawn last."""
        notes, last = self._rows.ring.notes, self._last
        now = self.ctx.clock.total.train_iters
        drawn = {
            "use": notes["use"][last],
            "priority": notes["priority"][last],
            "age_iters": now - notes["train_iters"][last],
        }
        return {
            **self.tally.metrics("rows", self.count),
            "expired_rows": self._rows.removed,
            "late_rows": self.tally.late,
            **spread(drawn),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        return {**super().state_dict(), "drawn": self._outstanding.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._outstanding.load(state["drawn"])
