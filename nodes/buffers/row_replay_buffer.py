"""What buffers have in common whose elements are rows: transforms, and demonstrations beside the rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Batch
from flowrl.core.config import param, parts
from flowrl.core.ports import In
from flowrl.nodes.buffers.demonstrations import Demonstrations
from flowrl.nodes.buffers.replay_buffer import ReplayBuffer
from flowrl.nodes.buffers.ring import Ring
from flowrl.nodes.buffers.transforms.transform import Transforms


class RowReplayBuffer(ReplayBuffer):
    """Demonstrations are kept apart: data never evicts them; they are a batch's last rows."""

    demos = In("samples", optional=True, about="kept for ever, beside the agent's rows")

    class Config(ReplayBuffer.Config):
        transforms: Any = parts("transform", "what is done to rows when they are drawn")
        batch_size: int = param(64, "rows in each batch", ge=1)
        demo_share: float = param(0.25, "share of a batch that is demonstrations", gt=0, le=1)
        demo_draw: Literal["fixed", "binomial"] = param(
            "fixed", "always as many, or each row drawn to be one with this chance"
        )

    def setup(self) -> None:
        """The rows, what is done to them, and the demonstrations."""
        super().setup()
        c = self.config
        self._transforms = Transforms(c.transforms, self._ring, self.ctx.rng("transforms"))
        self._demos = Demonstrations(self.ctx, c.demo_share, c.demo_draw)
        self._last = np.empty(0, np.int64)  # places of the newest draw

    @property
    def _ring(self) -> Ring:
        """The rows, whatever else is known of them."""
        raise NotImplementedError

    def push(self, data: Batch) -> None:
        """Keep these rows; they replace the oldest."""
        first = self._ring.written
        self._write(data)
        self._transforms.pushed(data.columns, first)
        self.tally.pushes += 1
        self.tally.pushed += len(data)

    def _write(self, data: Batch) -> None:
        raise NotImplementedError

    def push_demos(self, demos: Batch) -> None:
        """Keep these demonstrations for ever."""
        self._demos.push(demos)

    def clear(self) -> None:
        """Forget the agent's rows; demonstrations stay."""
        super().clear()
        self._transforms.clear()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        return {
            **super().state_dict(),
            "transforms": self._transforms.state_dict(),
            "demos": self._demos.state_dict(),
            "last": self._last,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._transforms.load_state_dict(state["transforms"])
        self._demos.load_state_dict(state["demos"])
        self._last = np.array(state["last"])
