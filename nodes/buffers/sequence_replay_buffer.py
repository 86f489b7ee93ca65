"""The sequence replay buffer: draws sequences of steps by priority, for recurrent learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import param
from flowrl.core.node import Facts, Surroundings, UnsoundError
from flowrl.nodes.buffers.counters import summary_metrics
from flowrl.nodes.buffers.episodes.segments import recovered_columns
from flowrl.nodes.buffers.episodes.sequences import SequenceCutter, sequence_priorities
from flowrl.nodes.buffers.pacing import check_pacing
from flowrl.nodes.buffers.replay_buffer import ReplayBuffer
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
from flowrl.nodes.buffers.sampling.uniform import shortage_error, split_batches
from flowrl.nodes.buffers.storage.plan import StoragePlan, input_schema, make_ring
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.decays import linear_decay

# Of each sequence: its first row and length (16), its weight and its metadata.
SEQUENCE_BYTES = 16 + SAMPLER_BYTES + ROW_METADATA_BYTES


class SequenceReplayBuffer(ReplayBuffer):
    """Sequences of steps with priorities (R2D2: Kapturowski et al. 2019).

    No sequence crosses the end of an episode. Steps with origin columns are followed from token to token; other
    steps are cut within their token. The steps are stored once, in a ring; the sequences are rows of a second,
    prioritised ring, which holds the first step and the length of each.
    """

    priorities = priorities_port(SETS_PRIORITIES)

    class Config(ReplayBuffer.Config):
        batch_size: int = param(32, "sequences in each batch", ge=1)
        unroll_steps: int = param(20, "steps of a sequence, including the burn-in", ge=1)
        burn_in_steps: int = param(0, "first steps, which only warm up a memory", ge=0)
        period_steps: int | None = param(
            None,
            "from one sequence's begin to the next; default: each step is learned from once",
            ge=1,
        )
        memory_columns: list[str] = param([], "columns of which only the first step is emitted")
        alpha: float = param(0.9, "how much priorities count; 0: draws are uniform", ge=0, le=10)
        beta: float = param(
            0.6, "how much `weight` corrects for priorities at the beginning", ge=0, le=1
        )
        beta_iters: int = param(100_000, "train iterations until it corrects fully", ge=1)
        eta: float = param(
            0.9, "a sequence's priority is eta max + (1 - eta) mean of its steps'", ge=0, le=1
        )
        priority_least: float = param(
            1e-5, "added to each priority, so that every sequence can be drawn", gt=0
        )
        replace: bool = param(True, "a batch may hold a sequence twice (faster, and stratified)")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """A row of a batch is a sequence: (T, …) of each column, and which of its steps are valid."""
        schema = input_schema(surroundings)
        if config.burn_in_steps >= config.unroll_steps:
            what = (
                f"`burn_in_steps` is {config.burn_in_steps}, but a sequence has only "
                f"{config.unroll_steps} steps"
            )
            raise UnsoundError(what, "make `unroll_steps` larger", "unroll_steps")
        unknown = sorted(set(config.memory_columns) - set(schema))
        if unknown:
            raise UnsoundError(
                f"the data has no column '{unknown[0]}'",
                f"name some of {', '.join(schema)}",
                "memory_columns",
            )
        plan = StoragePlan(config, schema, SEQUENCE_BYTES)
        return Facts(
            outs={"batches": _sequence_columns(schema, config)},
            rows={"batches": config.batch_size},
            needs={"data": {"last": Column("bool")}},
            memory_bytes=plan.memory_bytes(SEQUENCE_BYTES),
            nondeterministic=plan.nondeterministic(check_pacing(config, surroundings)),
        )

    def setup(self) -> None:
        super().setup()
        c = self.config
        self._sequences: PrioritisedRing | None = None  # as large as the ring of steps
        self._pending = PendingBatches(self.ctx.key, "priorities" in self.ctx.inputs)
        self._last_places = np.empty(0, np.int64)  # of the newest draw
        period = c.period_steps or c.unroll_steps - c.burn_in_steps
        self._cutter = SequenceCutter(c.unroll_steps, period)
        if self._rows.row_count:
            self._add_sequences(*recovered_columns(self._rows))

    def _make_rows(self) -> Ring:
        return make_ring(self.config, self.ctx)

    def fire(self, data: Batch | None, priorities: PriorityTokens) -> list[Batch]:
        """Apply the priorities that arrived, store the steps that arrived, and draw the batches that are due."""
        self.pacer.count_learned(apply_priorities(priorities, self.update))
        if data is not None:
            self.pacer.check_insert(self.push(data))
        return self.draw_due()

    def push(self, data: Batch) -> int:
        """Store steps, and the sequences that they complete; returns the number of these."""
        first, last = self._rows.written, data["last"].copy()
        last[-1:] = True  # a token ends its segment; what continues it is found by its origin
        columns = {**data.columns, "last": last}
        self._rows.push(columns)
        added = self._add_sequences(columns, first)
        self.counters.pushes += 1
        self.counters.pushed += added
        return added

    def update(self, priorities: Array) -> None:
        """Set the priorities of the oldest batch that has none yet: of sequences (W,), or of steps (W, T)."""
        numbers, valid = self._pending.pop_oldest()
        values = np.asarray(priorities, np.float64)
        of_steps = values.ndim == 2
        checked = checked_priorities(
            self.ctx.key, values, valid.shape if of_steps else numbers.shape
        )
        if of_steps:
            learned = valid & (np.arange(valid.shape[1]) >= self.config.burn_in_steps)
            checked = sequence_priorities(checked, learned, self.config.eta)
        late = self._sequence_ring().update(numbers, checked + self.config.priority_least)
        self.counters.late += late

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """Draw batches of sequences in one gather."""
        rows = batch_size
        if self.count < self._sampler.required(rows):
            raise shortage_error(self.ctx.key, rows, self.count, "sequences")
        sequences, rng = self._sequence_ring(), self._sampler.rng
        if self.config.replace:
            places, probability = sequences.sampler.draw(rng, batches, rows)
        else:
            drawn = [sequences.sampler.draw_distinct(rng, rows) for _ in range(batches)]
            places, probability = (np.concatenate(part) for part in zip(*drawn, strict=True))
        now = self.ctx.clock.total.train_iters
        beta = linear_decay(self.config.beta, 1.0, self.config.beta_iters, now)
        weight = importance_weights(probability, sequences.live, beta, rows)
        bounds = sequences.ring.take(places)
        columns, valid = self._gather(bounds["first"], bounds["length"])
        sequences.count_use(places, None)
        numbers = sequences.ring.numbers_of(places)
        self._pending.add([*zip(np.split(numbers, batches), np.split(valid, batches), strict=True)])
        self._last_places = places
        self.counters.sampled += batches * rows
        return split_batches({**columns, "valid": valid, "weight": weight}, batches, rows)

    @property
    def count(self) -> int:
        """The sequences that can be drawn."""
        return self._sequences.live if self._sequences is not None else 0

    def clear(self) -> None:
        super().clear()
        self._cutter.clear()
        if self._sequences is not None:
            self._sequences.clear()

    def _add_sequences(self, columns: Mapping[str, Array], first: int) -> int:
        """Add the sequences that new steps complete, of which the first has this number; returns how many."""
        firsts, lengths = self._cutter.push(columns, first)
        sequences, now = self._sequence_ring(), self.ctx.clock.total
        oldest = self._rows.oldest
        held = firsts >= oldest
        bounds = {"first": firsts[held], "length": lengths[held]}
        sequences.push(bounds, train_iters=now.train_iters, env_steps=now.env_steps)
        sequences.remove_all_below("first", oldest)
        self._cutter.forget_before(oldest)
        return len(firsts)

    def _sequence_ring(self) -> PrioritisedRing:
        """The ring of sequences. It is made after the first push, when the size of the ring of steps is final."""
        if self._sequences is None:
            ring = Ring(self._rows.size, metadata=ROW_METADATA)
            self._sequences = PrioritisedRing(ring, "proportional", self.config.alpha)
        return self._sequences

    def _gather(self, firsts: Array, lengths: Array) -> tuple[dict[str, Array], Array]:
        """The steps of sequences (W, T, …), of memory columns those of the first step (W, …), and the valid steps."""
        steps = self.config.unroll_steps
        numbers, valid = self._cutter.rows_of(firsts, lengths)
        flat = self._rows.take(self._rows.places_of(numbers.reshape(-1)))
        columns = {k: v.reshape(len(firsts), steps, *v.shape[1:]) for k, v in flat.items()}
        for name in self.config.memory_columns:
            columns[name] = np.ascontiguousarray(columns[name][:, 0])
        # The stored `last` also marks the ends of tokens; within a sequence nothing ends before its last step.
        columns["last"] = np.arange(steps) >= lengths[:, None] - 1
        return columns, valid

    def metrics(self) -> dict[str, float]:
        """The counters, and statistics of the sequences that were drawn last."""
        metadata, last = self._sequence_ring().ring.metadata, self._last_places
        drawn = {
            "use": metadata["use"][last],
            "priority": metadata["priority"][last],
            "age_iters": self.ctx.clock.total.train_iters - metadata["train_iters"][last],
        }
        counts = self.counters.metrics("sequences", self.count)
        return {**counts, "late_sequences": self.counters.late, **summary_metrics(drawn)}

    def state_dict(self) -> dict[str, Any]:
        sequences = self._sequences
        return {
            **super().state_dict(),
            "cutter": self._cutter.state_dict(),
            "sequences": None if sequences is None else sequences.state_dict(),
            "pending": [list(pair) for pair in self._pending.state_dict()],
            "last_places": self._last_places,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._cutter.load_state_dict(state["cutter"])
        self._sequences = None
        if state["sequences"] is not None:
            self._sequence_ring().load_state_dict(state["sequences"])
        self._pending.load_state_dict(state["pending"])
        self._last_places = np.array(state["last_places"])


def _sequence_columns(schema: Schema, config: Any) -> dict[str, Column]:
    """The columns of a batch."""
    steps = config.unroll_steps
    columns = {
        name: c if name in config.memory_columns else replace(c, shape=(steps, *c.shape))
        for name, c in schema.items()
    }
    return {**columns, "valid": Column("bool", (steps,)), "weight": Column("float32")}
