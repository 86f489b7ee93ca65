"""The free-running replay buffer: no fixed rates, but a band of samples for each insert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from flowrl.batch import Batch
from flowrl.config import param
from flowrl.node import FiresOn
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.feedback import no_priorities
from flowrl.ports import In, Out


class FreeReplayBuffer(AdvancedReplayBuffer):
    """An advanced buffer that fires as soon as data or priorities come. Not deterministic.

    A batch is given when the learner has done one, while the band allows it. Where too few samples
    were taken, batches are given unasked: the learner's full queue then blocks the buffer, and the
    buffer whoever collects. So the band is kept by waiting, and nothing is ever dropped.
    """

    fires_on: ClassVar[FiresOn] = "any"
    data = In("samples")
    demos = In("samples", optional=True, about="kept for ever, beside the agent's rows")
    priorities = In("priorities", initial=no_priorities, about="of each batch, when it is done")
    batches = Out("samples", rate="most_batches")

    class Config(AdvancedReplayBuffer.Config):
        samples_per_insert: float = param(8.0, "rows that are drawn for each that comes in", gt=0)
        band_rows: int = param(2048, "drawn rows that this may be off by, either way", ge=1)
        ahead_batches: int = param(2, "batches that are under way to the learner", ge=1)
        most_batches: int = param(16, "batches of one firing", ge=1)
        first_rows: int = param(1000, "rows that must have come before the first batch", ge=1)

    def setup(self) -> None:
        """Nothing is asked for before the first token of priorities, which is an empty one."""
        super().setup()
        self._asked = 0  # batches; less than nothing where some were given unasked

    def fire(  # type: ignore[override]
        self, data: Batch | None, demos: Batch | None, priorities: Batch | None
    ) -> list[Batch]:
        """Take what came, and give what the band allows or demands."""
        if priorities is not None:
            self._answer(priorities)
        if demos is not None:
            self.push_demos(demos)
        if data is not None:
            self._must_keep_up(len(data))
            self.push(data)
        least, most = self._band()
        count = min(max(least, min(self._asked, most)), self.config.most_batches)
        if not self.ctx.wants("batches") or count < 1:
            return []
        self._asked -= count
        batches = self._batches(count, self.config.batch_size)
        if data is not None and self._pushes % self.config.log_every_pushes == 0:
            self.ctx.metrics(self._metrics())
        return batches

    def _must_keep_up(self, rows: int) -> None:
        """A token must not bring more than a firing can give for it, else the band is lost."""
        c = self.config
        due = rows * c.samples_per_insert
        if due > c.most_batches * c.batch_size:
            raise ValueError(
                f"{self.ctx.key}: {rows} rows came, for which {due:.0f} are due, and a firing gives "
                f"{c.most_batches} batches of {c.batch_size}; make `most_batches` larger"
            )

    def _answer(self, priorities: Batch) -> None:
        """The learner has done a batch; at first it may have several under way."""
        if len(priorities):
            self.update(priorities["priority"])
            self._asked += 1
        else:
            self._asked += self.config.ahead_batches

    def _band(self) -> tuple[int, int]:
        """Batches that must be given now, and that may be."""
        c = self.config
        if self._pushed < max(c.first_rows, c.batch_size):
            return 0, 0
        due = (self._pushed - c.first_rows) * c.samples_per_insert - self._sampled
        return int((due - c.band_rows) // c.batch_size), int((due + c.band_rows) // c.batch_size)

    def _metrics(self) -> dict[str, float]:
        inserted = max(self._pushed - self.config.first_rows, 1)
        return {**super()._metrics(), "samples_per_insert": self._sampled / inserted}

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        return {**super().state_dict(), "asked": self._asked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._asked = int(state["asked"])
