"""A buffer's firing: what came is kept, then the batches that are due are drawn together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from flowrl.core.batch import Batch
from flowrl.core.context import Context
from flowrl.nodes.buffers.pace import Band, Lockstep
from flowrl.nodes.buffers.tally import Tally


class Buffer(Protocol):
    """What a firing needs of one."""

    ctx: Context
    config: Any
    tally: Tally
    pace: Lockstep | Band

    def push(self, data: Batch) -> None:
        """Keep these rows."""

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """So many batches."""

    def metrics(self) -> dict[str, float]:
        """What is told once in `log_every_pushes` tokens."""


def fired(buffer: Buffer, data: Batch | None, learned: Sequence[Batch] = ()) -> list[Batch]:
    """Keep what came, and draw; `learned` has a token for each batch that the learner has done."""
    buffer.pace.heard(learned)
    if data is not None:
        before = buffer.tally.pushed
        buffer.push(data)
        buffer.pace.came(buffer.tally.pushed - before)
    if not buffer.ctx.is_consumed("batches"):
        return []
    due = buffer.pace.due(buffer.tally)
    batches = buffer.draw(due, buffer.config.batch_size) if due else []
    if buffer.tally.due(buffer.config.log_every_pushes):
        buffer.ctx.metrics({**buffer.metrics(), **buffer.pace.metrics(buffer.tally)})
    return batches
