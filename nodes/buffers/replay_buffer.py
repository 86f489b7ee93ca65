"""What replay buffers have in common: rows that are kept, and drawn at a pace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.nodes.buffers.draws import Draw, wanted
from flowrl.nodes.buffers.firing import fired
from flowrl.nodes.buffers.pace import pace_of
from flowrl.nodes.buffers.settings import Pacing
from flowrl.nodes.buffers.tally import Tally


class ReplayBuffer(Node):
    """A kind defines `_keep`, `push`, `draw` and `metrics`; an element is a row, or more than one."""

    fires_on = "samples_per_insert"
    data = In("samples")
    batches = Out("samples", rate="updates_per_push")

    class Config(Pacing):
        pass

    def setup(self) -> None:
        """Rows that an earlier process has left are there (`storage: mapped`)."""
        c = self.config
        self._draw = Draw(self.ctx.rng("sample"), c.replace)
        self.tally, self.pace = Tally(), pace_of(c, self.ctx)
        self._rows = self._keep()

    def _keep(self) -> Any:
        """What keeps the rows."""
        raise NotImplementedError

    def _fired(self, data: Batch | None, learned: Sequence[Batch]) -> list[Batch]:
        """Keep what came, then draw the batches that are due together."""
        return fired(self, data, learned)

    @property
    def count(self) -> int:
        """Elements that can be drawn."""
        raise NotImplementedError

    def push(self, data: Batch) -> None:
        """Keep these rows; they replace the oldest."""
        raise NotImplementedError

    def sample(self, batch_size: int | None = None) -> Batch:
        """By hand: one batch."""
        return self.draw(1, wanted(self.ctx.key, batch_size, self.config.batch_size))[0]

    def draw(self, batches: int, batch_size: int) -> list[Batch]:
        """So many batches."""
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """What went through, and what is known of what was drawn last."""
        raise NotImplementedError

    def rows(self) -> Batch:
        """All rows that are held, the oldest first: a data set."""
        return Batch(self._rows.in_order())

    def flush(self) -> None:
        """Where rows outlive the process (`storage: mapped`): those that are held now will."""
        self._rows.flush()

    def close(self) -> None:
        """The same, and nothing can be pushed or drawn any more."""
        self._rows.close()

    def clear(self) -> None:
        """Forget all rows."""
        self._rows.clear()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next batch depends on."""
        return {
            "rows": self._rows.state_dict(),
            "tally": self.tally.state(),
            "pace": self.pace.state(),
            "rng": self._draw.rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._rows.load_state_dict(state["rows"])
        self.tally = Tally(*state["tally"])
        self.pace.load(state["pace"])
        self._draw.rng.bit_generator.state = state["rng"]
