"""The advanced replay buffer: draws rows by priority, and removes rows that are too old or used up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Rows, as_batch
from flowrl.core.config import param
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.nodes.buffers.counters import summary_metrics
from flowrl.nodes.buffers.demonstrations import demo_bytes, joined_with_demos, required_columns
from flowrl.nodes.buffers.pacing import check_pacing
from flowrl.nodes.buffers.prioritised_demonstrations import (
    PrioritisedDemonstrations,
    PrioritisedDemosConfig,
    check_prioritised_demos,
)
from flowrl.nodes.buffers.replay_buffer import RowReplayBuffer
from flowrl.nodes.buffers.row_windows import WindowFacts, window_metadata
from flowrl.nodes.buffers.sampling.prioritised_ring import (
    BOOKKEEPING,
    PUSHED_METADATA_BYTES,
    ROW_METADATA_BYTES,
    SAMPLER_BYTES,
    PrioritisedRing,
)
from flowrl.nodes.buffers.sampling.priority_feedback import (
    PendingBatches,
    PrioritiesConfig,
    PriorityTokens,
    apply_priorities,
    priorities_port,
)
from flowrl.nodes.buffers.sampling.priority_samplers import importance_weights
from flowrl.nodes.buffers.sampling.uniform import (
    concatenate_columns,
    shortage_error,
)
from flowrl.nodes.buffers.storage.plan import StoragePlan, input_schema, make_ring
from flowrl.nodes.buffers.transforms.transform import check_transforms
from flowrl.nodes.origin import WEIGHTS_COLUMN, collected_at
from flowrl.nodes.schedules import linear_decay


class AdvancedReplayBuffer(RowReplayBuffer):
    """Prioritised experience replay (Schaul et al. 2016).

    The batches of a round are drawn together, with the priorities that the learner sent in the previous round. A
    free-running buffer fires as soon as rows or priorities arrive.
    """

    ring: PrioritisedRing
    _demos: PrioritisedDemonstrations
    priorities = priorities_port()

    class Config(RowReplayBuffer.Config, PrioritisedDemosConfig, PrioritiesConfig):
        priority: Literal["proportional", "rank"] = param(
            "proportional",
            "draw in proportion to priorities, or to the inverse of their ranks",
            only_with="priorities",
        )
        alpha: float = param(
            0.6,
            "exponent of priorities; 0: draws are uniform",
            ge=0,
            le=10,
            only_with="priorities",
        )
        beta: float = param(
            0.4,
            "exponent of importance weights (`weight`) at the beginning",
            ge=0,
            le=1,
            only_with="priorities",
        )
        max_use: int | None = param(None, "draws after which a row is removed", ge=1)
        max_staleness_iters: int | None = param(
            None,
            "a row is removed when the weights that collected it are older by more train iterations; in a "
            "graph the collector needs `origin: true`",
            ge=0,
        )
        replace: bool = param(True, "a batch may contain a row twice (faster, and stratified)")
        bookkeeping: bool = param(False, f"batches also have the columns {', '.join(BOOKKEEPING)}")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        if config.max_use is not None and config.replace:
            raise UnsoundError(
                "with `max_use` no batch may contain a row twice",
                "write `replace: false`",
                "replace",
            )
        if "demos" not in surroundings.inputs:  # of which an unknown share of the draws are
            _check_uses(config, surroundings.rows.get("data"))
        schema, with_demos = input_schema(surroundings), "demos" in surroundings.inputs
        if config.max_staleness_iters is not None and WEIGHTS_COLUMN not in schema:
            raise UnsoundError(
                "with `max_staleness_iters` rows must say which weights collected them",
                "write `origin: true` at the collector",
                "max_staleness_iters",
            )
        windows = WindowFacts.of(config, surroundings)
        check_transforms(config.transforms, schema)
        check_prioritised_demos(config, surroundings)
        row_bytes = ROW_METADATA_BYTES + windows.row_bytes
        plan = StoragePlan(config, schema, row_bytes, surroundings.rows.get("data"))
        added = dict(BOOKKEEPING) if config.bookkeeping else {}
        added |= {"is_demo": Column("bool")} if with_demos else {}
        needs = {"demos": required_columns(schema), "priorities": {"priority": Column("float32")}}
        return Facts(
            outs={"batches": {**windows.drawn, "weight": Column("float32"), **added}},
            rows={"batches": config.batch_size},
            ordered={"batches": False},
            replays=frozenset({"batches"}),
            needs_order=frozenset({"data"} if config.transforms or windows.rule else ()),
            needs={port: need for port, need in needs.items() if port in surroundings.inputs},
            needs_rows={"data": (config.batch_size + windows.most_waiting, "batch_size")},
            needs_rows_each={"priorities": (config.batch_size, "batch_size")},
            memory_bytes=plan.memory_bytes(row_bytes + SAMPLER_BYTES)
            + demo_bytes(config, surroundings),
            state_bytes=plan.state_bytes(row_bytes + SAMPLER_BYTES),
            live_state_bytes=plan.state_bytes(PUSHED_METADATA_BYTES),
            checks_numbers=not config.transforms,
            nondeterministic=plan.nondeterministic(
                check_pacing(config, surroundings, surroundings.rows.get("data"))
            ),
        )

    def setup(self) -> None:
        super().setup()
        self.ring.withhold(self._windows.waiting)  # of an earlier process
        self._pending = PendingBatches(self.ctx.key, "priorities" in self.ctx.inputs)

    def _make_ring(self) -> PrioritisedRing:
        c, more = self.config, window_metadata(self._rule)
        return make_ring(c, self.ctx, partial(PrioritisedRing, c.priority, c.alpha, metadata=more))

    def _make_demos(self) -> PrioritisedDemonstrations:
        rule, c = self._demo_rule(), self.config
        return PrioritisedDemonstrations(self.ctx, c, kind=c.priority, rule=rule)

    def fire(
        self, data: Batch | None, demos: Batch | None, priorities: PriorityTokens
    ) -> list[Batch]:
        """Apply priorities, store rows, and draw the batches that are due."""
        self.pacer.count_learned(apply_priorities(priorities, self.update))
        if demos is not None:
            self.push_demos(demos)
        if data is not None:
            self.pacer.check_insert(self.push(data))
        return self.draw_due()

    def push(self, data: Batch | Rows) -> int:
        """Store rows, which replace the oldest; return their number. They get the highest priority so far."""
        data = as_batch(f"{self.ctx.key}.push", data)
        first, clock = self.ring.written, self.ctx.clock
        collected = collected_at(data.columns, clock)
        self.ring.push(data.columns, train_iters=collected, env_steps=clock.total.env_steps)
        self._windows.push(data.columns, first)
        self.ring.withhold(self._windows.waiting)
        self._transforms.push(data.columns, first)
        self.counters.pushes += 1
        self.counters.pushed += len(data)
        return len(data)

    def update(self, priorities: Array, row_id: Array | None = None) -> None:
        """Set the priorities of the oldest batch that awaits some, or of the rows with these numbers.

        Rows that no longer exist are counted (`late_rows`). The numbers of demonstrations are negative.
        """
        numbers = self._pending.pop_oldest() if row_id is None else row_id
        priorities = self._pending.check_priorities(priorities, numbers.shape)
        written = self.ring.written
        if row_id is not None and len(numbers) and numbers.max() >= written:
            known = f"rows 0 to {written - 1} were written" if written else "no row was written"
            raise ValueError(f"{self.ctx.key}: row {numbers.max()} does not exist; {known}")
        if self._demos.expected:
            is_demo = numbers < 0
            self.counters.late += self._demos.update(numbers[is_demo], priorities[is_demo])
            numbers, priorities = numbers[~is_demo], priorities[~is_demo]
        priorities = priorities + self.config.priority_least
        self.counters.late += self.ring.update(numbers, priorities)

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """Draw all batches in one gather. In each, demonstrations follow the agent's rows."""
        if self.config.max_staleness_iters is not None:
            oldest = self.ctx.clock.total.train_iters - self.config.max_staleness_iters
            self.ring.remove_older(oldest)
        demo_rows = self._demos.rows_of_batches(batches, batch_size, self._demos.share(self.ring))
        if self.has_only_demos:
            demo_rows = [batch_size] * batches
        agent_rows = [batch_size - n for n in demo_rows]
        # Without replacement, rows that one batch uses up must not be in the next one.
        together = self.config.replace and len(set(agent_rows)) == 1
        draws = [(batches, agent_rows[0])] if together else [(1, n) for n in agent_rows]
        columns = concatenate_columns([self._draw_columns(*draw) for draw in draws])
        if self._demos.expected:
            columns = self._with_demos(columns, demo_rows, batch_size)
        now = self.ctx.clock.total.train_iters
        beta = linear_decay(self.config.beta, 1.0, self.config.beta_iters, now)
        columns["weight"] = importance_weights(columns["weight"], beta, batch_size)
        self._pending.add(columns["row_id"].reshape(batches, -1))
        if not self.config.bookkeeping:
            del columns["row_id"]
        self.counters.sampled += batches * batch_size
        return Batch(columns).split(batches)

    def _with_demos(
        self, agent: dict[str, Array], demo_rows: Sequence[int], batch_size: int
    ) -> dict[str, Array]:
        """Draw demonstrations, and append them to the agent's rows of each batch."""
        demos = self._demos
        index, frequency = demos.draw(self._sampler.rng, demo_rows, self.config.replace)
        agent["weight"], frequency = demos.common_frequencies(agent["weight"], frequency, self.ring)
        none = {
            name: np.zeros(len(index), a.dtype) for name, a in agent.items() if name in BOOKKEEPING
        }
        drawn = {"weight": frequency, "row_id": demos.numbers[index]}
        if self.config.bookkeeping:
            drawn["priority"] = demos.priority[index]
        columns = {**none, **demos.take(index, agent), **drawn}
        return joined_with_demos(agent, columns, batch_size, demo_rows)

    def _draw_columns(self, batches: int, rows: int) -> dict[str, Array]:
        """Draw the agent's rows of some batches, with their numbers and bookkeeping.

        The column `weight` is how often a row is drawn, relative to uniform draws.
        """
        c, ring, now = self.config, self.ring, self.ctx.clock.total.train_iters
        if self.has_only_demos:
            return {**self._no_rows(), **self._no_bookkeeping()}
        if ring.live < max(1, rows):
            raise shortage_error(self.ctx.key, rows, ring.live, expired=ring.removed)
        places, frequency = ring.draw(self._sampler.rng, batches, rows, c.replace)
        row_id = ring.numbers_of(places)
        columns = {**self._transforms.take(places), "weight": frequency, "row_id": row_id}
        if c.bookkeeping:
            columns |= ring.bookkeeping(places, now)
        ring.count_use(places, c.max_use)
        self._last_places = places
        return columns

    def _no_bookkeeping(self) -> dict[str, Array]:
        added = {"weight": Column("float64"), "row_id": Column("int64")}
        added |= BOOKKEEPING if self.config.bookkeeping else {}
        return {name: np.empty(0, column.dtype) for name, column in added.items()}

    @property
    def count(self) -> int:
        """The number of the agent's rows that can be drawn."""
        return self.ring.live

    def metrics(self) -> dict[str, float]:
        """Return the counters, and statistics of the rows of the newest draw."""
        return {
            **self.counters.metrics("rows", self.count + len(self._windows.waiting)),
            **self._windows.metrics(),
            "expired_rows": self.ring.removed,
            "late_rows": self.counters.late,
            **summary_metrics(self.measured()),
        }

    def measured(self) -> dict[str, Array]:
        return self.ring.measured(self._last_places, self.ctx.clock.total.train_iters)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "pending": self._pending.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._pending.load_state_dict(state["pending"])


def _check_uses(config: Any, arriving: int | None) -> None:
    """Refuse more draws than the rows that arrive may be used for (`max_use`): the run would lack rows some time."""
    draws, key = config.samples_per_insert, "samples_per_insert"
    if draws is None and arriving:
        draws, key = config.updates_per_push * config.batch_size / arriving, "updates_per_push"
    if config.max_use is None or draws is None or draws <= config.max_use:
        return
    what = (
        f"{draws:g} rows are drawn for each row that arrives, and `max_use` allows {config.max_use}"
    )
    raise UnsoundError(what, f"raise `max_use`, or lower `{key}`", "max_use")
