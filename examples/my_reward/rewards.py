"""Two reward nodes: a function without state, and a class with state."""

from typing import Any

import numpy as np

import flowrl
from flowrl import Batch, In, Node, Out, param


@flowrl.as_node
def stay_centred(data: Batch, *, weight: float = 0.2) -> Batch:
    """Reduces the reward by up to `weight`, the more the farther the cart is from the centre."""
    position = data["next_obs"][:, 0] / np.float32(2.4)  # 1 at the right end of the track
    return data.replace(reward=data["reward"] - np.float32(weight) * position**2)


class UnitReward(Node):
    """Divides rewards by their root mean square so far."""

    data = In("samples")
    out = Out("samples")

    class Config(flowrl.Config):
        log_every_rows: int = param(10_000, "rows between two reports of the scale", ge=1)

    def setup(self) -> None:
        """Keep all state between firings in attributes."""
        self.rows, self.squares, self.reported = 0, 0.0, 0

    def fire(self, data: Batch) -> Batch:
        """Turn one token into another; tokens are read-only, so `replace` makes a new one."""
        self.rows += len(data)
        self.squares += float(np.square(data["reward"], dtype=np.float64).sum())
        scale = (self.squares / self.rows) ** 0.5 or 1.0
        if self.rows - self.reported >= self.config.log_every_rows:
            self.reported = self.rows
            self.ctx.metrics({"reward_scale": scale})
        return data.replace(reward=data["reward"] / np.float32(scale))

    def state_dict(self) -> dict[str, Any]:
        """Return all state between firings, so that the node can be saved."""
        return {"rows": self.rows, "squares": self.squares, "reported": self.reported}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.rows, self.squares = state["rows"], state["squares"]
        self.reported = state["reported"]
