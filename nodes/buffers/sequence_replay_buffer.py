"""The sequence replay buffer: draws sequences of steps by priority, for recurrent learners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Rows, Schema, as_batch
from flowrl.core.config import param, parts
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.ports import In
from flowrl.nodes.buffers.counters import summary_metrics
from flowrl.nodes.buffers.demonstrations import demo_bytes, joined_with_demos, required_columns
from flowrl.nodes.buffers.episodes.segments import recovered_columns
from flowrl.nodes.buffers.episodes.sequences import SequenceCutter, sequence_priorities
from flowrl.nodes.buffers.pacing import check_pacing
from flowrl.nodes.buffers.prioritised_demonstrations import (
    PrioritisedDemosConfig,
    SequenceDemonstrations,
    check_prioritised_demos,
)
from flowrl.nodes.buffers.replay_buffer import ReplayBuffer
from flowrl.nodes.buffers.row_windows import RowWindows
from flowrl.nodes.buffers.sampling.prioritised_ring import (
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
from flowrl.nodes.buffers.sampling.uniform import shortage_error
from flowrl.nodes.buffers.storage.plan import StoragePlan, input_schema
from flowrl.nodes.buffers.transforms.transform import TransformPipeline, check_transforms
from flowrl.nodes.origin import STEP_COLUMN, WEIGHTS_COLUMN, collected_at
from flowrl.nodes.schedules import linear_decay

# The bytes of each sequence: its first row and length (16), its weight and its metadata.
SEQUENCE_BYTES = 16 + SAMPLER_BYTES + ROW_METADATA_BYTES
# The parameters that its learner's policy must know, too.
SEQUENCE_SETTINGS = ("unroll_steps", "burn_in_steps", "memory_columns")
ORIGIN_HINT = "write `origin: true` at {source}, so that steps are followed from token to token"


class SequenceReplayBuffer(ReplayBuffer):
    """Sequences of steps with priorities (R2D2: Kapturowski et al. 2019).

    No sequence crosses the end of an episode. Steps with origin columns are followed from token to token; other
    steps are cut within their token. `ring` stores each step once. The rows of a second, prioritised ring are the
    sequences: the number of the first step and the length of each.
    """

    data = In("samples", may_idle=True)
    demos = In(
        "samples",
        optional=True,
        about="kept separately from the agent's; without memory, it is 0",
        unlike="data",
    )
    priorities = priorities_port()

    class Config(ReplayBuffer.Config, PrioritisedDemosConfig, PrioritiesConfig):
        transforms: Any = parts("transform", "applied to sequences when they are drawn")
        batch_size: int = param(32, "sequences in each batch", ge=1)
        unroll_steps: int = param(20, "steps of a sequence, including the burn-in", ge=1)
        burn_in_steps: int = param(0, "first steps, which only update the memory", ge=0)
        period_steps: int | None = param(
            None,
            "steps from the start of a sequence to the start of the next; default: each step is learned from once",
            ge=1,
        )
        memory_columns: list[str] = param([], "columns of which only the first step is emitted")
        alpha: float = param(
            0.9,
            "exponent of priorities; 0: draws are uniform",
            ge=0,
            le=10,
            only_with="priorities",
        )
        beta: float = param(
            0.6,
            "exponent of importance weights (`weight`) at the beginning",
            ge=0,
            le=1,
            only_with="priorities",
        )
        eta: float = param(
            0.9,
            "a sequence's priority is eta max + (1 - eta) mean of the priorities of its steps",
            ge=0,
            le=1,
            only_with="priorities",
        )
        replace: bool = param(True, "a batch may contain a sequence twice (faster, and stratified)")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Describe batches. A row is a sequence: (T, …) of each column, and a flag for each valid step."""
        schema = input_schema(surroundings)
        if config.burn_in_steps >= config.unroll_steps:
            what = (
                f"`burn_in_steps` is {config.burn_in_steps}, but a sequence has only "
                f"{config.unroll_steps} steps"
            )
            raise UnsoundError(what, "increase `unroll_steps`", "unroll_steps")
        unknown = sorted(set(config.memory_columns) - set(schema))
        if unknown:
            raise UnsoundError(
                f"the data has no column '{unknown[0]}'",
                f"name some of {', '.join(schema)}",
                "memory_columns",
            )
        check_prioritised_demos(config, surroundings)
        check_transforms(config.transforms, schema)
        plan = StoragePlan(config, schema, SEQUENCE_BYTES, surroundings.rows.get("data"))
        columns, needs = _sequence_columns(schema, config), {"data": {"last": Column("bool")}}
        if "demos" in surroundings.inputs:
            columns["is_demo"] = Column("bool")
            needs["demos"] = _demo_columns(schema, config)
        return Facts(
            outs={"batches": columns},
            rows={"batches": config.batch_size},
            needs_rows_each={"priorities": (config.batch_size, "batch_size")},
            ordered={"batches": False},
            replays=frozenset({"batches"}),
            needs_order=frozenset({"data", "demos"}),
            needs_episodes=frozenset() if STEP_COLUMN in schema else frozenset({"data"}),
            episode_hints={"data": ORIGIN_HINT},
            sequences={"batches": {name: getattr(config, name) for name in SEQUENCE_SETTINGS}},
            needs=needs,
            memory_bytes=plan.memory_bytes(SEQUENCE_BYTES) + demo_bytes(config, surroundings),
            state_bytes=plan.state_bytes(SEQUENCE_BYTES),
            live_state_bytes=plan.state_bytes(16 + PUSHED_METADATA_BYTES),
            checks_numbers=not config.transforms,
            nondeterministic=plan.nondeterministic(check_pacing(config, surroundings)),
        )

    def setup(self) -> None:
        super().setup()
        c = self.config
        self._sequences: PrioritisedRing | None = None  # with as many places as the ring of steps
        self._pending = PendingBatches(self.ctx.key, "priorities" in self.ctx.inputs)
        self._last_places = np.empty(0, np.int64)  # of the newest draw
        self._cutter = self._make_cutter()
        windows = RowWindows(self.ring, None)
        self._transforms = TransformPipeline(c.transforms, windows, self.ctx.rng("transforms"))
        self._demos = SequenceDemonstrations(self.ctx, c, self._make_cutter())
        if self.ring.row_count:
            self._add_sequences(*recovered_columns(self.ring))

    def _make_cutter(self) -> SequenceCutter:
        c = self.config
        period = c.period_steps or c.unroll_steps - c.burn_in_steps
        return SequenceCutter(c.unroll_steps, period)

    def fire(
        self, data: Batch | None, demos: Batch | None = None, priorities: PriorityTokens = None
    ) -> list[Batch]:
        """Apply priorities, store steps, and draw the batches that are due."""
        self.pacer.count_learned(apply_priorities(priorities, self.update))
        if demos is not None:
            self.push_demos(demos)
        if data is not None:
            self.pacer.check_insert(self.push(data))
        return self.draw_due()

    def push(self, data: Batch | Rows) -> int:
        """Store steps, and the sequences that they complete; return the number of new sequences."""
        data = as_batch(f"{self.ctx.key}.push", data)
        first, last = self.ring.written, data["last"].copy()
        # A segment ends with its token; its continuation is found by the origin columns.
        last[-1:] = True
        columns = {**data.columns, "last": last}
        self.ring.push(columns)
        self._transforms.push(columns, first)
        added = self._add_sequences(columns, first)
        self.counters.pushes += 1
        self.counters.pushed += added
        return added

    def push_demos(self, demos: Batch | Rows) -> None:
        """Store demonstrated steps, and the sequences that they complete."""
        self._demos.push(as_batch(f"{self.ctx.key}.push_demos", demos))

    @property
    def has_only_demos(self) -> bool:
        """Whether no step of the agent has arrived yet. Then batches consist of demonstrations."""
        return self._demos.expected and not self.ring.written

    def update(self, priorities: Array) -> None:
        """Set the priorities of the oldest batch that awaits some: of sequences (W,), or of steps (W, T)."""
        numbers, valid = self._pending.pop_oldest()
        values = np.asarray(priorities, np.float64)
        of_steps = values.ndim == 2
        shape = valid.shape if of_steps else numbers.shape
        checked = self._pending.check_priorities(values, shape)
        if of_steps:
            learned = valid & (np.arange(valid.shape[1]) >= self.config.burn_in_steps)
            checked = sequence_priorities(checked, learned, self.config.eta)
        if self._demos.expected:
            is_demo = numbers < 0
            self.counters.late += self._demos.update(numbers[is_demo], checked[is_demo])
            numbers, checked = numbers[~is_demo], checked[~is_demo]
        self.counters.late += self.sequences.update(numbers, checked + self.config.priority_least)

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """Draw all batches in one gather. In each, demonstrations follow the agent's sequences."""
        c, now = self.config, self.ctx.clock.total.train_iters
        agent = None if self.has_only_demos else self.sequences
        demo_rows = self._demos.rows_of_batches(batches, batch_size, self._demos.share(agent))
        if agent is None:
            demo_rows = [batch_size] * batches
            columns, numbers = self._no_sequences(), np.empty(0, np.int64)
        else:
            columns, numbers = self._draw_agent(agent, [batch_size - n for n in demo_rows])
        if self._demos.expected:
            columns, numbers = self._with_demos(agent, columns, numbers, demo_rows, batch_size)
        beta = linear_decay(c.beta, 1.0, c.beta_iters, now)
        columns["weight"] = importance_weights(columns["weight"], beta, batch_size)
        valid = np.split(columns["valid"], batches)
        self._pending.add([*zip(np.split(numbers, batches), valid, strict=True)])
        self.counters.sampled += batches * batch_size
        return Batch(columns).split(batches)

    def _draw_agent(
        self, sequences: PrioritisedRing, rows: Sequence[int]
    ) -> tuple[dict[str, Array], Array]:
        """Draw `rows[k]` of the agent's sequences for batch k; return their columns and numbers.

        The column `weight` is how often a sequence is drawn, relative to uniform draws.
        """
        if self.count < max(1, self._sampler.required(max(rows))):
            raise shortage_error(self.ctx.key, max(rows), self.count, "sequences")
        draws = [(len(rows), rows[0])] if len(set(rows)) == 1 else [(1, n) for n in rows]
        rng, replace = self._sampler.rng, self.config.replace
        drawn = [sequences.draw(rng, batches, n, replace) for batches, n in draws]
        places, frequency = (np.concatenate(part) for part in zip(*drawn, strict=True))
        bounds = sequences.take(places)
        columns, valid = self._gather(bounds["first"], bounds["length"])
        sequences.count_use(places, None)
        self._last_places = places
        return {**columns, "valid": valid, "weight": frequency}, sequences.numbers_of(places)

    def _with_demos(
        self,
        sequences: PrioritisedRing | None,
        agent: dict[str, Array],
        numbers: Array,
        demo_rows: Sequence[int],
        batch_size: int,
    ) -> tuple[dict[str, Array], Array]:
        """Draw demonstrations, and append them to the agent's sequences of each batch."""
        demos = self._demos
        index, frequency = demos.draw(self._sampler.rng, demo_rows, self.config.replace)
        agent["weight"], frequency = demos.common_frequencies(agent["weight"], frequency, sequences)
        drawn = {"weight": frequency, "row_id": demos.numbers[index]}
        joined = joined_with_demos(
            {**agent, "row_id": numbers},
            {**demos.take(index, agent), **drawn},
            batch_size,
            demo_rows,
        )
        return joined, joined.pop("row_id")

    def _no_sequences(self) -> dict[str, Array]:
        """The columns of the agent's sequences, without any."""
        schema: Schema = self.ctx.inputs.get("data") or {}
        known = _sequence_columns(schema or self._demos.schema, self.config)
        empty = {n: np.empty((0, *c.shape), c.dtype) for n, c in known.items()}
        return {**empty, "weight": np.empty(0)}

    @property
    def count(self) -> int:
        """The number of sequences that can be drawn."""
        return self._sequences.live if self._sequences is not None else 0

    def clear(self) -> None:
        super().clear()
        self._cutter.clear()
        self._transforms.clear()
        if self._sequences is not None:
            self._sequences.clear()

    def _add_sequences(self, columns: Mapping[str, Array], first: int) -> int:
        """Add the sequences that new steps complete; return their number. `first` is the number of the first step."""
        firsts, lengths = self._cutter.push(columns, first)
        sequences, clock = self.sequences, self.ctx.clock
        oldest = self.ring.oldest
        held = firsts >= oldest
        bounds = {"first": firsts[held], "length": lengths[held]}
        names = [name for name in (WEIGHTS_COLUMN,) if name in self.ring.columns]
        oldest_steps = self.ring.take(self.ring.places_of(firsts[held]), names)
        collected = collected_at(oldest_steps, clock)
        sequences.push(bounds, train_iters=collected, env_steps=clock.total.env_steps)
        sequences.remove_all_below("first", oldest)
        self._cutter.forget_before(oldest)
        return len(firsts)

    @property
    def sequences(self) -> PrioritisedRing:
        """The ring of sequences. It is made after the first push, when the size of the ring of steps is final."""
        if self._sequences is None:
            self._sequences = PrioritisedRing("proportional", self.config.alpha, self.ring.size)
        return self._sequences

    def _gather(self, firsts: Array, lengths: Array) -> tuple[dict[str, Array], Array]:
        """Return the columns of sequences (W, T, …), memory columns (W, …), and which steps are valid (W, T)."""
        steps = self.config.unroll_steps
        numbers, valid = self._cutter.rows_of(firsts, lengths)
        groups = np.repeat(np.arange(len(firsts)), steps)
        places = self.ring.places_of(numbers.reshape(-1))
        flat, beyond = self._transforms.take_groups(places, groups)
        valid &= ~beyond.reshape(valid.shape)
        columns = {k: v.reshape(len(firsts), steps, *v.shape[1:]) for k, v in flat.items()}
        for name in self.config.memory_columns:
            columns[name] = np.ascontiguousarray(columns[name][:, 0])
        # The stored `last` also marks the ends of tokens; within a sequence nothing ends before its last step.
        columns["last"] = np.arange(steps) >= valid.sum(1, keepdims=True) - 1
        return columns, valid

    def metrics(self) -> dict[str, float]:
        """Return the counters, and statistics of the sequences of the newest draw."""
        return {
            **self.counters.metrics("sequences", self.count),
            "late_sequences": self.counters.late,
            **summary_metrics(self.measured()),
        }

    def measured(self) -> dict[str, Array]:
        return self.sequences.measured(self._last_places, self.ctx.clock.total.train_iters)

    def state_dict(self) -> dict[str, Any]:
        sequences, live = self._sequences, self.ctx.reads_live_arrays
        return {
            **super().state_dict(),
            "cutter": self._cutter.state_dict(),
            "transforms": self._transforms.state_dict(),
            "demos": self._demos.state_dict(),
            "sequences": None if sequences is None else sequences.state_dict(live),
            "pending": [list(pair) for pair in self._pending.state_dict()],
            "last_places": self._last_places,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._cutter.load_state_dict(state["cutter"])
        self._transforms.load_state_dict(state["transforms"])
        self._demos.load_state_dict(state["demos"])
        self._sequences = None
        if state["sequences"] is not None:
            self.sequences.load_state_dict(state["sequences"])
        self._pending.load_state_dict(state["pending"])
        self._last_places = np.array(state["last_places"])


def _demo_columns(schema: Schema, config: Any) -> dict[str, Column]:
    """Return the columns that demonstrations must have: all but the origin columns and the memory."""
    required = required_columns(schema)
    return {name: c for name, c in required.items() if name not in config.memory_columns}


def _sequence_columns(schema: Schema, config: Any) -> dict[str, Column]:
    """Return the columns of a batch."""
    steps = config.unroll_steps
    columns = {
        name: c if name in config.memory_columns else replace(c, shape=(steps, *c.shape))
        for name, c in schema.items()
    }
    return {**columns, "valid": Column("bool", (steps,)), "weight": Column("float32")}
