"""The bases of replay buffers: rows in a storage, batches that are drawn at a pace, metrics, and state.

A kind of buffer defines `fire`, `push`, `draw` and `metrics`. Its `fire` is a sequence of four steps:

1. `pacer.count_learned`: count the batches that the learner has finished (or apply their priorities),
2. `push`: store the rows that arrived,
3. `pacer.check_insert`: refuse more rows than the pace allows,
4. `draw_due`: draw the batches that are due, all in one gather, and report metrics now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from flowrl.core.batch import Batch
from flowrl.core.config import param, parts
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.nodes.buffers.counters import Counters
from flowrl.nodes.buffers.demonstrations import Demonstrations
from flowrl.nodes.buffers.pacing import PacingConfig, make_pacer
from flowrl.nodes.buffers.sampling.uniform import UniformSampler, requested_size
from flowrl.nodes.buffers.storage.plan import StorageConfig
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.transforms.transform import TransformPipeline


class ReplayBuffer(Node):
    """A buffer of elements: rows, sequences or episodes."""

    fires_on = "samples_per_insert"
    data = In("samples")
    batches = Out("samples", rate="updates_per_push")

    class Config(StorageConfig, PacingConfig):
        pass

    def setup(self) -> None:
        """Make the parts. A mapped storage may hold rows of an earlier process already."""
        self._sampler = UniformSampler(self.ctx.rng("sample"), self.config.replace)
        self.counters, self.pacer = Counters(), make_pacer(self.config, self.ctx)
        self._rows = self._make_rows()

    def _make_rows(self) -> Any:
        """A ring, or what keeps one."""
        raise NotImplementedError

    def draw_due(self) -> list[Batch]:
        """Draw the batches that are due, if anybody consumes them, and report metrics when they are due."""
        if not self.ctx.is_consumed("batches"):
            return []
        due = self.pacer.take_due(self.counters)
        batches = self.draw(due, self.config.batch_size) if due else []
        if self.counters.metrics_due(self.config.log_every_pushes):
            self.ctx.metrics({**self.metrics(), **self.pacer.metrics(self.counters)})
        return batches

    @property
    def count(self) -> int:
        """The elements that can be drawn."""
        raise NotImplementedError

    def push(self, data: Batch) -> int:
        """Store rows over the oldest; returns the number of new elements."""
        raise NotImplementedError

    def sample(self, batch_size: int | None = None) -> Batch:
        """Draw one batch, by hand."""
        return self.draw(1, requested_size(self.ctx.key, batch_size, self.config.batch_size))[0]

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """Draw batches."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """The counters, and statistics of what was drawn last."""
        raise NotImplementedError

    def rows(self) -> Batch:
        """All rows, the oldest first: a data set."""
        return Batch(self._rows.in_order())

    def flush(self) -> None:
        """Make the rows durable, where they outlive the process (`storage: mapped`)."""
        self._rows.flush()

    def close(self) -> None:
        """Flush, and release the storage. Nothing can be pushed or drawn afterwards."""
        self._rows.close()

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        return {
            "rows": self._rows.state_dict(),
            "counters": self.counters.state_dict(),
            "pacer": self.pacer.state_dict(),
            "rng": self._sampler.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rows.load_state_dict(state["rows"])
        self.counters = Counters(*state["counters"])
        self.pacer.load_state_dict(state["pacer"])
        self._sampler.rng.bit_generator.state = state["rng"]


class RowReplayBuffer(ReplayBuffer):
    """A buffer whose elements are rows: it also transforms what is drawn, and adds demonstrations to batches.

    Demonstrations are stored apart. Data never evicts them, and they are the last rows of a batch.
    """

    demos = In("samples", optional=True, about="kept for ever, beside the agent's rows")

    class Config(ReplayBuffer.Config):
        transforms: Any = parts("transform", "what is done to rows when they are drawn")
        batch_size: int = param(64, "rows in each batch", ge=1)
        demo_share: float = param(0.25, "share of a batch that is demonstrations", gt=0, le=1)
        demo_draw: Literal["fixed", "binomial"] = param(
            "fixed", "the same number in each batch, or each row is one with this probability"
        )

    def setup(self) -> None:
        super().setup()
        c = self.config
        self._transforms = TransformPipeline(c.transforms, self._ring, self.ctx.rng("transforms"))
        self._demos = Demonstrations(self.ctx, c.demo_share, c.demo_draw)
        self._last_places = np.empty(0, np.int64)  # of the newest draw

    @property
    def _ring(self) -> Ring:
        """The ring of rows."""
        raise NotImplementedError

    def push_demos(self, demos: Batch) -> None:
        """Store demonstrations, for ever."""
        self._demos.push(demos)

    def clear(self) -> None:
        """Forget the agent's rows. Demonstrations stay."""
        super().clear()
        self._transforms.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "transforms": self._transforms.state_dict(),
            "demos": self._demos.state_dict(),
            "last_places": self._last_places,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._transforms.load_state_dict(state["transforms"])
        self._demos.load_state_dict(state["demos"])
        self._last_places = np.array(state["last_places"])
