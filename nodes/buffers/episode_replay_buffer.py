"""The episode replay buffer: whole episodes of any length, drawn uniformly, whole or in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column
from flowrl.core.config import param
from flowrl.core.node import Facts, Surroundings
from flowrl.nodes.buffers.described import (
    memory_bytes,
    nondeterministic,
    ring_for,
    sound_size,
    stored_bytes,
    table_schema,
)
from flowrl.nodes.buffers.draws import too_few, wanted
from flowrl.nodes.buffers.feedback import COUNTED, Tokens, listed, priorities_in
from flowrl.nodes.buffers.replay_buffer import ReplayBuffer
from flowrl.nodes.buffers.ring import Ring
from flowrl.nodes.buffers.settings import sound_uniform_pace
from flowrl.nodes.buffers.tally import spread
from flowrl.nodes.buffers.windows import segments

FLAG = Column("bool")


class EpisodeReplayBuffer(ReplayBuffer):
    """An element is an episode; it leaves as a whole when its first row is overwritten."""

    priorities = priorities_in(COUNTED)

    class Config(ReplayBuffer.Config):
        batch_size: int = param(8, "episodes in each batch", ge=1)
        part_steps: int | None = param(
            None, "of each episode so many rows that follow each other; default: all", ge=1
        )
        replace: bool = param(True, "a batch may hold an episode twice")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        """The columns are those of the data, and which episode of the batch a row is of."""
        schema = table_schema(surroundings)
        size = sound_size(config, stored_bytes(config, schema))
        return Facts(
            outs={"batches": {**schema, "episode": Column("int64")}},
            needs={"data": {"last": FLAG, "terminated": FLAG, "truncated": FLAG}},
            memory_bytes=memory_bytes(config, schema, size),
            nondeterministic=nondeterministic(config, sound_uniform_pace(config, surroundings)),
        )

    def setup(self) -> None:
        """The rows, and where episodes begin and how long they are."""
        super().setup()
        self._firsts, self._lengths = self._found()  # numbers of first rows, in order

    def _keep(self) -> Ring:
        return ring_for(self.config, self.ctx)

    def fire(self, data: Batch | None, priorities: Tokens = None) -> list[Batch]:
        """Keep what came, then draw the batches that are due."""
        return self._fired(data, listed(priorities))

    @property
    def count(self) -> int:
        """Episodes that are held."""
        return len(self._firsts)

    def push(self, data: Batch) -> None:
        """Keep these episodes, over the oldest."""
        begins, ends = self._whole(data)
        first = self._rows.written
        self._rows.push(data.columns)
        self._firsts = np.append(self._firsts, first + begins)
        self._lengths = np.append(self._lengths, ends - begins)
        held = int(np.searchsorted(self._firsts, self._rows.written - self._rows.rows))
        self._firsts, self._lengths = self._firsts[held:], self._lengths[held:]
        self.tally.pushes += 1
        self.tally.pushed += len(begins)

    def sample(self, batch_size: int | None = None) -> Batch:
        """So many episodes, or parts of them, one after another; `episode` counts them from 0."""
        count = wanted(self.ctx.key, batch_size, self.config.batch_size)
        if self.count < self._draw.least(count):
            raise too_few(self.ctx.key, count, self.count, "episodes")
        drawn = self._draw(self.count, [count])
        firsts, lengths = self._parts(self._firsts[drawn], self._lengths[drawn])
        ends = lengths.cumsum()
        episode = np.repeat(np.arange(count), lengths)
        numbers = np.arange(ends[-1]) + np.repeat(firsts - (ends - lengths), lengths)
        columns = self._rows.take(self._rows.places_of(numbers))
        columns["last"][ends - 1] = True
        self.tally.sampled += count
        return Batch({**columns, "episode": episode})

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """So many batches."""
        return [self.sample(batch_size) for _ in range(batches)]

    def rows(self) -> Batch:
        """All episodes that are held, the oldest first: a data set."""
        first = int(self._firsts[0]) if self.count else self._rows.written
        numbers = np.arange(first, self._rows.written)
        return Batch(self._rows.take(self._rows.places_of(numbers)))

    def clear(self) -> None:
        """Forget all episodes."""
        super().clear()
        self._firsts, self._lengths = self._firsts[:0], self._lengths[:0]

    def _found(self) -> tuple[Array, Array]:
        """Episodes of rows that an earlier process has left; the oldest may have lost its begin."""
        ring = self._rows
        oldest = ring.written - ring.rows
        begins, ends = segments(ring.column("last"))
        whole = slice(1 if oldest else 0, None)
        return oldest + begins[whole], (ends - begins)[whole]

    def _parts(self, firsts: Array, lengths: Array) -> tuple[Array, Array]:
        """Where the rows of each drawn episode begin, and how many there are."""
        steps = self.config.part_steps
        if steps is None:
            return firsts, lengths
        more = np.maximum(lengths - steps, 0)
        return firsts + self._draw.rng.integers(more + 1), lengths - more

    def _whole(self, data: Batch) -> tuple[Array, Array]:
        begins, ends = segments(data["last"])
        ended = data["terminated"][ends - 1] | data["truncated"][ends - 1]
        if not ended.all():
            raise ValueError(
                f"{self.ctx.key}: the episode that begins at row {begins[np.argmin(ended)]} does not "
                "end; give whole episodes (an episode_collector does)"
            )
        size = self._rows.size
        if len(ends) and (longest := int((ends - begins).max())) > size:
            raise ValueError(
                f"{self.ctx.key}: an episode has {longest} rows, {size} are kept; make `size` larger"
            )
        return begins, ends

    def metrics(self) -> dict[str, float]:
        """What went through, and how long the episodes are that are held."""
        counts = self.tally.metrics("episodes", self.count)
        return {**counts, **spread({"length": self._lengths})}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        episodes = {"firsts": self._firsts.copy(), "lengths": self._lengths.copy()}
        return {**super().state_dict(), **episodes}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._firsts, self._lengths = np.array(state["firsts"]), np.array(state["lengths"])
