"""The sequence replay buffer: unrolls of steps, overlapping or aligned, drawn by priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import param
from flowrl.core.node import Facts, Surroundings, UnsoundError
from flowrl.nodes.buffers.chains import Chains
from flowrl.nodes.buffers.described import (
    memory_bytes,
    nondeterministic,
    ring_for,
    sound_size,
    stored_bytes,
    table_schema,
)
from flowrl.nodes.buffers.draws import cut, too_few
from flowrl.nodes.buffers.feedback import (
    LEARNED,
    Outstanding,
    Tokens,
    priorities_in,
    sound_priorities,
    taken,
)
from flowrl.nodes.buffers.prioritised_rows import NOTED_BYTES, NOTES, PrioritisedRows
from flowrl.nodes.buffers.replay_buffer import ReplayBuffer
from flowrl.nodes.buffers.ring import Ring
from flowrl.nodes.buffers.runs import found_again
from flowrl.nodes.buffers.settings import sound_pace
from flowrl.nodes.buffers.strata import importance
from flowrl.nodes.buffers.tally import spread
from flowrl.nodes.buffers.windows import of_sequences
from flowrl.nodes.decays import linear_decay

SEQUENCE_BYTES = 16 + 10 + NOTED_BYTES  # of a sequence: where it is, its weight, its notes


class SequenceReplayBuffer(ReplayBuffer):
    """Sequences are cut out of each token's episodes (R2D2: Kapturowski et al. 2019).

    None crosses an episode's end. Steps of known origin are followed from token to token; of others
    none crosses the end of what was given together.
    """

    priorities = priorities_in(LEARNED)

    class Config(ReplayBuffer.Config):
        batch_size: int = param(32, "sequences in each batch", ge=1)
        unroll_steps: int = param(20, "steps of a sequence, those of the burn-in among them", ge=1)
        burn_in_steps: int = param(0, "its first steps, which only warm a memory up", ge=0)
        period_steps: int | None = param(
            None, "from one sequence's begin to the next; default: what is learned from once", ge=1
        )
        memory_columns: list[str] = param([], "columns that are given of the first step only")
        alpha: float = param(0.9, "how much priorities count; 0: draws are uniform", ge=0, le=10)
        beta: float = param(0.6, "how much `weight` corrects for that in the beginning", ge=0, le=1)
        beta_iters: int = param(100_000, "train iterations until it corrects for all of it", ge=1)
        eta: float = param(0.9, "of steps' priorities: eta max + (1 - eta) mean", ge=0, le=1)
        priority_least: float = param(1e-5, "is added to each priority: all are drawn", gt=0)
        replace: bool = param(True, "a batch may hold a sequence twice (faster, and stratified)")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """A row of a batch is a sequence: (T, …) of each column, and which of its steps are real."""
        schema = table_schema(surroundings)
        if config.burn_in_steps >= config.unroll_steps:
            what = f"of {config.unroll_steps} steps {config.burn_in_steps} are burn-in"
            raise UnsoundError(what, "make `unroll_steps` larger", "unroll_steps")
        unknown = sorted(set(config.memory_columns) - set(schema))
        if unknown:
            raise UnsoundError(
                f"the data has no column '{unknown[0]}'", "name those it has", "memory_columns"
            )
        needs = {"data": {"last": Column("bool")}}
        size = sound_size(config, stored_bytes(config, schema) + SEQUENCE_BYTES)
        return Facts(
            outs={"batches": _sequences(schema, config)},
            rows={"batches": config.batch_size},
            needs=needs,
            memory_bytes=memory_bytes(config, schema, size, SEQUENCE_BYTES),
            nondeterministic=nondeterministic(config, sound_pace(config, surroundings)),
        )

    def setup(self) -> None:
        """The steps, and the sequences as rows of their own: the first step and the length."""
        super().setup()
        c = self.config
        self._sequences: PrioritisedRows | None = None  # as many as steps, known at the first push
        self._outstanding = Outstanding(self.ctx.key, "priorities" in self.ctx.inputs)
        self._last = np.empty(0, np.int64)  # places of the newest draw
        period = c.period_steps or c.unroll_steps - c.burn_in_steps
        self._chains = Chains(c.unroll_steps, period)
        if self._rows.rows:
            self._add(*found_again(self._rows))

    def _keep(self) -> Ring:
        return ring_for(self.config, self.ctx)

    def fire(self, data: Batch | None, priorities: Tokens) -> list[Batch]:
        """Take the priorities that came, keep the steps that came, draw the batches that are due."""
        return self._fired(data, taken(priorities, self.update))

    @property
    def count(self) -> int:
        """Sequences that can be drawn."""
        return self._sequences.live if self._sequences is not None else 0

    def push(self, data: Batch) -> None:
        """Keep these steps, and the sequences that lie in them."""
        first, last = self._rows.written, data["last"].copy()
        last[-1:] = True  # what goes on in the next token is found by its origin, or begins anew
        columns = {**data.columns, "last": last}
        self._rows.push(columns)
        self.tally.pushes += 1
        self.tally.pushed += self._add(columns, first)

    def update(self, priorities: Array) -> None:
        """Priorities of the oldest batch that has none yet: of sequences (W,), or of steps (W, T)."""
        numbers, valid = self._outstanding.oldest()
        given = np.asarray(priorities, np.float64)
        of_steps = given.ndim == 2
        checked = sound_priorities(self.ctx.key, given, valid.shape if of_steps else numbers.shape)
        if of_steps:
            learned = valid & (np.arange(valid.shape[1]) >= self.config.burn_in_steps)
            checked = of_sequences(checked, learned, self.config.eta)
        self.tally.late += self._held().update(numbers, checked + self.config.priority_least)

    def clear(self) -> None:
        """Forget all steps."""
        super().clear()
        self._chains.clear()
        if self._sequences is not None:
            self._sequences.clear()

    def _add(self, columns: Mapping[str, Array], first: int) -> int:
        """The sequences that end in new steps, from this number on; gives how many there are."""
        firsts, lengths = self._chains.push(columns, first)
        held, now = self._held(), self.ctx.clock.total
        oldest = self._rows.written - self._rows.rows
        new = firsts >= oldest
        places = {"first": firsts[new], "length": lengths[new]}
        held.push(places, train_iters=now.train_iters, env_steps=now.env_steps)
        held.remove_all_below("first", oldest)
        self._chains.forget(oldest)
        return len(firsts)

    def _held(self) -> PrioritisedRows:
        if self._sequences is None:
            ring = Ring(self._rows.size, notes=NOTES)
            self._sequences = PrioritisedRows(ring, "proportional", self.config.alpha)
        return self._sequences

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """So many batches of sequences, in one gather."""
        rows = batch_size
        if self.count < self._draw.least(rows):
            raise too_few(self.ctx.key, rows, self.count, "sequences")
        held, rng = self._held(), self._draw.rng
        if self.config.replace:
            places, chance = held.priorities.draw(rng, batches, rows)
        else:
            drawn = [held.priorities.draw_distinct(rng, rows) for _ in range(batches)]
            places, chance = (np.concatenate(part) for part in zip(*drawn, strict=True))
        now = self.ctx.clock.total.train_iters
        beta = linear_decay(self.config.beta, 1.0, self.config.beta_iters, now)
        weight = importance(chance, held.live, beta, rows)
        found = held.ring.take(places)
        columns, valid = self._unrolled(found["first"], found["length"])
        held.use(places, None)
        numbers = held.ring.numbers_of(places)
        self._outstanding.add(
            [*zip(np.split(numbers, batches), np.split(valid, batches), strict=True)]
        )
        self._last = places
        self.tally.sampled += batches * rows
        return cut({**columns, "valid": valid, "weight": weight}, batches, rows)

    def _unrolled(self, firsts: Array, lengths: Array) -> tuple[dict[str, Array], Array]:
        """The steps of sequences, (W, T, …); of a memory the first step's, (W, …)."""
        steps = self.config.unroll_steps
        numbers, valid = self._chains.rows(firsts, lengths)
        flat = self._rows.take(self._rows.places_of(numbers.reshape(-1)))
        columns = {k: v.reshape(len(firsts), steps, *v.shape[1:]) for k, v in flat.items()}
        for name in self.config.memory_columns:
            columns[name] = np.ascontiguousarray(columns[name][:, 0])
        # Within it nothing ends, though a token may have.
        columns["last"] = np.arange(steps) >= lengths[:, None] - 1
        return columns, valid

    def metrics(self) -> dict[str, float]:
        """What went through, and what is known of the sequences that were drawn last."""
        notes, last = self._held().ring.notes, self._last
        drawn = {
            "use": notes["use"][last],
            "priority": notes["priority"][last],
            "age_iters": self.ctx.clock.total.train_iters - notes["train_iters"][last],
        }
        counts = self.tally.metrics("sequences", self.count)
        return {**counts, "late_sequences": self.tally.late, **spread(drawn)}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        held = self._sequences
        return {
            **super().state_dict(),
            "chains": self._chains.state_dict(),
            "sequences": None if held is None else held.state_dict(),
            "drawn": [list(pair) for pair in self._outstanding.state()],
            "last": self._last,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._chains.load_state_dict(state["chains"])
        self._sequences = None
        if state["sequences"] is not None:
            self._held().load_state_dict(state["sequences"])
        self._outstanding.load(state["drawn"])
        self._last = np.array(state["last"])


def _sequences(schema: Schema, config: Any) -> dict[str, Column]:
    """The columns of a batch."""
    steps = config.unroll_steps
    found = {
        name: c if name in config.memory_columns else replace(c, shape=(steps, *c.shape))
        for name, c in schema.items()
    }
    return {**found, "valid": Column("bool", (steps,)), "weight": Column("float32")}
