"""The bases of replay buffers: a ring of rows, a pacer that says how many batches are due, metrics, and state.

A kind of buffer defines `fire`, `push`, `draw`, `count` and `metrics`. Its `fire` has four steps:

1. `pacer.count_learned` counts the batches that the learner has finished (prioritised kinds apply their priorities).
2. `push` stores the rows that arrived.
3. `pacer.check_insert` refuses more rows than the pace allows.
4. `draw_due` draws the batches that are due, and reports metrics every `log_every_pushes` tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Rows, Schema, as_batch
from flowrl.core.config import param, parts
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.nodes.buffers.counters import Counters
from flowrl.nodes.buffers.demonstrations import Demonstrations
from flowrl.nodes.buffers.pacing import PacingConfig, make_pacer
from flowrl.nodes.buffers.row_windows import RowWindows
from flowrl.nodes.buffers.sampling.uniform import UniformSampler, requested_size
from flowrl.nodes.buffers.storage.plan import StorageConfig, make_ring
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.transforms.transform import TransformPipeline
from flowrl.nodes.nstep import NstepRule, nstep_policy, nstep_rule


class ReplayBuffer(Node):
    """A buffer of elements, which are rows, sequences or episodes."""

    fires_on = "samples_per_insert"
    may_end_run = False
    data = In("samples")
    batches = Out("samples", rate="updates_per_push")
    _rule: NstepRule | None = None  # by which it sums rewards

    class Config(StorageConfig, PacingConfig):
        pass

    def setup(self) -> None:
        """Make the parts. The ring of a mapped storage may already hold rows of an earlier process."""
        self._sampler = UniformSampler(self.ctx.rng("sample"), self.config.replace)
        schema, rule = self.ctx.inputs.get("data"), self._rule
        waiting = rule.most_waiting(schema) if rule is not None and schema else 0
        self.counters, self.pacer = Counters(), make_pacer(self.config, self.ctx, waiting)
        self.ring = self._make_ring()

    def _make_ring(self) -> Ring:
        """Make the ring that stores the rows."""
        return make_ring(self.config, self.ctx, Ring)

    def draw_due(self) -> list[Batch]:
        """Draw the batches that are due, if a node consumes them, and report metrics if they are due."""
        if not self.ctx.is_consumed("batches"):
            return []
        due = self.pacer.take_due(self.counters)
        batches = self.draw(due, self.config.batch_size) if due else []
        if self.counters.metrics_due(self.config.log_every_pushes):
            self.ctx.histograms(self.measured())
            self.ctx.metrics({**self.metrics(), **self.pacer.metrics(self.counters)})
        return batches

    @property
    def count(self) -> int:
        """The number of elements that can be drawn."""
        raise NotImplementedError

    def push(self, data: Batch | Rows) -> int:
        """Store rows, which replace the oldest; return the number of new elements."""
        raise NotImplementedError

    def sample(self, batch_size: int | None = None) -> Batch:
        """Draw one batch; for use without the engine."""
        return self.draw(1, requested_size(self.ctx.key, batch_size, self.config.batch_size))[0]

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """Draw batches of `batch_size` elements."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return the counters, and statistics of the newest draw."""
        raise NotImplementedError

    def measured(self) -> dict[str, Array]:
        """Return the arrays whose statistics are metrics, such as the priorities of the newest draw."""
        raise NotImplementedError

    def rows(self) -> Batch:
        """Return all rows, the oldest first, as a dataset."""
        return Batch(self.ring.in_order())

    def flush(self) -> None:
        """Make the rows durable if their storage outlives the process (`storage: mapped`)."""
        self.ring.flush()

    def close(self) -> None:
        """Flush, and release the storage. Nothing can be pushed or drawn afterwards."""
        self.ring.close()

    def clear(self) -> None:
        self.ring.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next batch depends on."""
        return {
            "rows": self.ring.state_dict(self.ctx.reads_live_arrays),
            "counters": self.counters.state_dict(),
            "pacer": self.pacer.state_dict(),
            "rng": self._sampler.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.ring.load_state_dict(state["rows"], self.ctx.keeps_loaded_arrays)
        self.counters = Counters(*state["counters"])
        self.pacer.load_state_dict(state["pacer"])
        self._sampler.rng.bit_generator.state = state["rng"]


class RowReplayBuffer(ReplayBuffer):
    """A buffer whose elements are rows. It transforms drawn rows, and adds demonstrations to batches.

    Demonstrations are stored separately. The agent's rows never replace them. They are the last rows of a batch.
    """

    data = In("samples", may_idle=True)
    demos = In(
        "samples", optional=True, about="kept separately from the agent's rows", unlike="data"
    )

    class Config(ReplayBuffer.Config):
        policy: Any = nstep_policy()
        transforms: Any = parts("transform", "applied to rows when they are drawn")
        batch_size: int = param(64, "rows in each batch", ge=1)

    def setup(self) -> None:
        c = self.config
        self._rule = nstep_rule(c.policy, self.ctx.inputs.get("data"))
        super().setup()
        self._windows = RowWindows(self.ring, self._rule)
        self._transforms = TransformPipeline(
            c.transforms, self._windows, self.ctx.rng("transforms")
        )
        self._demos = self._make_demos()
        self._last_places = np.empty(0, np.int64)  # of the newest draw

    def _make_demos(self) -> Demonstrations:
        """Make the store of demonstrations."""
        raise NotImplementedError

    def _demo_rule(self) -> NstepRule | None:
        """By which rule the rewards of demonstrations are summed."""
        return nstep_rule(self.config.policy, self.ctx.inputs.get("demos"))

    def push_demos(self, demos: Batch | Rows) -> None:
        """Store demonstrations. No window of rewards reaches from one call to the next."""
        self._demos.push(as_batch(f"{self.ctx.key}.push_demos", demos))

    @property
    def has_only_demos(self) -> bool:
        """Whether no row of the agent has arrived yet. Then batches consist of demonstrations."""
        return self._demos.expected and not self.ring.written

    def _no_rows(self) -> dict[str, Array]:
        """The columns of the agent's drawn rows, without any row."""
        known: Schema = self.ctx.outs.get("batches") or self.ctx.inputs.get("data") or {}
        empty = {n: np.empty((0, *c.shape), c.dtype) for n, c in known.items() if n != "is_demo"}
        return empty or self._demos.no_rows()

    def clear(self) -> None:
        """Remove the agent's rows. Demonstrations stay."""
        super().clear()
        self._windows.clear()
        self._transforms.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "windows": self._windows.state_dict(),
            "transforms": self._transforms.state_dict(),
            "demos": self._demos.state_dict(),
            "last_places": self._last_places,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._windows.load_state_dict(state["windows"])
        self._transforms.load_state_dict(state["transforms"])
        self._demos.load_state_dict(state["demos"])
        self._last_places = np.array(state["last_places"])
