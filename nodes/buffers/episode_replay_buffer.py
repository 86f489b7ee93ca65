"""The episode replay buffer: stores episodes of any length, and draws whole or partial episodes uniformly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Rows, as_batch
from flowrl.core.config import param, parts
from flowrl.core.facts import Facts, Surroundings
from flowrl.nodes.buffers.counters import summary_metrics
from flowrl.nodes.buffers.episodes.segments import segment_bounds
from flowrl.nodes.buffers.pacing import check_uniform_pacing
from flowrl.nodes.buffers.replay_buffer import ReplayBuffer
from flowrl.nodes.buffers.row_windows import RowWindows, WindowFacts, window_metadata
from flowrl.nodes.buffers.sampling.priority_feedback import (
    COUNTS_BATCHES,
    PriorityTokens,
    as_tokens,
    priorities_port,
)
from flowrl.nodes.buffers.sampling.uniform import requested_size, shortage_error
from flowrl.nodes.buffers.storage.plan import StoragePlan, input_schema, make_ring
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.transforms.transform import TransformPipeline, check_transforms
from flowrl.nodes.nstep import nstep_policy, nstep_rule

FLAG = Column("bool")


class EpisodeReplayBuffer(ReplayBuffer):
    """Stores whole episodes. An episode is removed as a whole when its first row is overwritten."""

    priorities = priorities_port(COUNTS_BATCHES)

    class Config(ReplayBuffer.Config):
        policy: Any = nstep_policy()
        transforms: Any = parts("transform", "applied to episodes when they are drawn")
        batch_size: int = param(8, "episodes in each batch", ge=1)
        part_steps: int | None = param(
            None, "consecutive rows drawn from each episode; default: all rows", ge=1
        )
        replace: bool = param(True, "a batch may contain an episode twice")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """Describe batches: the columns of the data, and `episode`, the row's episode within the batch."""
        schema, windows = input_schema(surroundings), WindowFacts.of(config, surroundings)
        check_transforms(config.transforms, schema)
        plan = StoragePlan(config, schema, windows.row_bytes, surroundings.rows.get("data"))
        return Facts(
            outs={"batches": {**windows.drawn, "episode": Column("int64")}},
            needs={"data": {"last": FLAG, "terminated": FLAG, "truncated": FLAG}},
            ordered={"batches": True},
            replays=frozenset({"batches"}),
            needs_order=frozenset({"data"}),
            needs_episodes=frozenset({"data"}),
            memory_bytes=plan.memory_bytes(windows.row_bytes),
            state_bytes=plan.state_bytes(windows.row_bytes),
            live_state_bytes=plan.state_bytes(),
            checks_numbers=not config.transforms,
            nondeterministic=plan.nondeterministic(check_uniform_pacing(config, surroundings)),
        )

    def setup(self) -> None:
        self._rule = nstep_rule(self.config.policy, self.ctx.inputs.get("data"))
        super().setup()
        self._windows = RowWindows(self.ring, self._rule)
        transforms, rng = self.config.transforms, self.ctx.rng("transforms")
        self._transforms = TransformPipeline(transforms, self._windows, rng)
        # The number of the first row and the length of each episode, the oldest first.
        self._firsts, self._lengths = self._recover_episodes()

    def _make_ring(self) -> Ring:
        metadata = window_metadata(self._rule)
        return make_ring(self.config, self.ctx, partial(Ring, metadata=metadata))

    def fire(self, data: Batch | None, priorities: PriorityTokens = None) -> list[Batch]:
        """Store the episodes that arrived, and draw the batches that are due."""
        self.pacer.count_learned(as_tokens(priorities))
        if data is not None:
            self.pacer.check_insert(self.push(data))
        return self.draw_due()

    def push(self, data: Batch | Rows) -> int:
        """Store whole episodes, which replace the oldest; return their number."""
        data = as_batch(f"{self.ctx.key}.push", data)
        begins, ends = self._episode_bounds(data)
        first = self.ring.written
        self.ring.push(data.columns)
        self._windows.push(data.columns, first)
        self._transforms.push(data.columns, first)
        self._firsts = np.append(self._firsts, first + begins)
        self._lengths = np.append(self._lengths, ends - begins)
        evicted = int(np.searchsorted(self._firsts, self.ring.oldest))
        self._firsts, self._lengths = self._firsts[evicted:], self._lengths[evicted:]
        self.counters.pushes += 1
        self.counters.pushed += len(begins)
        return len(begins)

    def sample(self, batch_size: int | None = None) -> Batch:
        """Draw whole or partial episodes. Their rows follow each other; the column `episode` numbers them from 0."""
        count = requested_size(self.ctx.key, batch_size, self.config.batch_size)
        if self.count < self._sampler.required(count):
            raise shortage_error(self.ctx.key, count, self.count, "episodes")
        drawn = self._sampler.draw(self.count, [count])
        firsts, lengths = self._draw_parts(self._firsts[drawn], self._lengths[drawn])
        ends = lengths.cumsum()
        episode = np.repeat(np.arange(count), lengths)
        numbers = np.arange(ends[-1]) + np.repeat(firsts - (ends - lengths), lengths)
        columns, beyond = self._transforms.take_groups(self.ring.places_of(numbers), episode)
        columns["episode"] = episode
        if beyond.any():
            columns = {name: array[~beyond] for name, array in columns.items()}
        columns["last"][np.diff(columns["episode"], append=-1) != 0] = True
        self.counters.sampled += count
        return Batch(columns)

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        return [self.sample(batch_size) for _ in range(batches)]

    @property
    def count(self) -> int:
        """The number of episodes."""
        return len(self._firsts)

    def rows(self) -> Batch:
        """Return all episodes, the oldest first, as a dataset."""
        first = int(self._firsts[0]) if self.count else self.ring.written
        numbers = np.arange(first, self.ring.written)
        return Batch(self.ring.take(self.ring.places_of(numbers)))

    def clear(self) -> None:
        super().clear()
        self._windows.clear()
        self._transforms.clear()
        self._firsts, self._lengths = self._firsts[:0], self._lengths[:0]

    def _recover_episodes(self) -> tuple[Array, Array]:
        """Find the episodes of rows that an earlier process left. The oldest may be incomplete, so it is dropped."""
        oldest = self.ring.oldest
        begins, ends = segment_bounds(self.ring.stored_column("last"))
        complete = slice(1 if oldest else 0, None)
        return oldest + begins[complete], (ends - begins)[complete]

    def _draw_parts(self, firsts: Array, lengths: Array) -> tuple[Array, Array]:
        """Draw where the part of each episode begins; return first rows and lengths."""
        steps = self.config.part_steps
        if steps is None:
            return firsts, lengths
        excess = np.maximum(lengths - steps, 0)
        return firsts + self._sampler.rng.integers(excess + 1), lengths - excess

    def _episode_bounds(self, data: Batch) -> tuple[Array, Array]:
        """Return first rows and ends of the episodes of a token; refuse episodes that are incomplete or too long."""
        begins, ends = segment_bounds(data["last"])
        ended = data["terminated"][ends - 1] | data["truncated"][ends - 1]
        if not ended.all():
            raise ValueError(
                f"{self.ctx.key}: the episode that begins at row {begins[np.argmin(ended)]} is incomplete; "
                "push whole episodes (an episode_collector emits them)"
            )
        size = self.ring.size
        if len(ends) and (longest := int((ends - begins).max())) > size:
            raise ValueError(
                f"{self.ctx.key}: an episode has {longest} rows, but the size is {size}; "
                "increase `size`"
            )
        return begins, ends

    def metrics(self) -> dict[str, float]:
        """Return the counters, and statistics of the lengths of all episodes."""
        counts = self.counters.metrics("episodes", self.count)
        return {**counts, **summary_metrics(self.measured())}

    def measured(self) -> dict[str, Array]:
        return {"length": self._lengths}

    def state_dict(self) -> dict[str, Any]:
        episodes = {"firsts": self._firsts.copy(), "lengths": self._lengths.copy()}
        return {
            **super().state_dict(),
            **episodes,
            "windows": self._windows.state_dict(),
            "transforms": self._transforms.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._windows.load_state_dict(state["windows"])
        self._transforms.load_state_dict(state["transforms"])
        self._firsts, self._lengths = np.array(state["firsts"]), np.array(state["lengths"])
