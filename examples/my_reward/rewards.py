"""Two reward nodes: a function that keeps nothing, and a class that does."""

from typing import Any

import numpy as np

import flowrl
from flowrl import Batch, In, Node, Out, param


@flowrl.as_node
def stay_centred(data: Batch, *, weight: float = 0.2) -> Batch:
    """Takes up to `weight` from a row's reward: the more, the farther the cart is out."""
    position = data["next_obs"][:, 0] / np.float32(2.4)  # 1 at the edge of the track
    return data.replace(reward=data["reward"] - np.float32(weight) * position**2)


class UnitReward(Node):
    """Divides rewards by their root mean square so far."""

    data = In("samples")
    out = Out("samples")

    class Config(flowrl.Config):
        """What a graph may say of this node; the ranges are checked before anything runs."""

        log_every_rows: int = param(10_000, "rows between two reports of the scale", ge=1)

    def setup(self) -> None:
        """What must survive between two firings lies in attributes."""
        self.rows, self.squares, self.reported = 0, 0.0, 0

    def fire(self, data: Batch) -> Batch:
        """One token in, one out. Tokens are never written to: `replace` makes another one."""
        self.rows += len(data)
        self.squares += float(np.square(data["reward"], dtype=np.float64).sum())
        scale = (self.squares / self.rows) ** 0.5 or 1.0
        if self.rows - self.reported >= self.config.log_every_rows:
            self.reported = self.rows
            self.ctx.metrics({"reward_scale": scale})
        return data.replace(reward=data["reward"] / np.float32(scale))

    def state_dict(self) -> dict[str, Any]:
        """For snapshots."""
        return {"rows": self.rows, "squares": self.squares, "reported": self.reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.rows, self.squares, self.reported = (
            state[name] for name in ("rows", "squares", "reported")
        )
