"""Two nodes of your own: a function for a node without state, a class for a node with state."""

from __future__ import annotations

import numpy as np

import flowrl


@flowrl.as_node
def scale_reward(data: flowrl.Batch, *, factor: float = 1.0) -> flowrl.Batch:
    """Multiplies every reward by a factor. Inputs are positional, parameters keyword-only."""
    return data.replace(reward=data["reward"] * np.float32(factor))


class Upright(flowrl.Node):
    """Adds a bonus to each reward if the pole is more upright than on average."""

    data = flowrl.In("samples")
    out = flowrl.Out("samples", about="the same rows, with the bonus in their reward")

    class Config(flowrl.Config):
        """The parameters that the graph may set."""

        weight: float = flowrl.param(0.1, "of the bonus in the reward", ge=0)
        decay: float = flowrl.param(0.99, "of the average, each token", ge=0, lt=1)

    def setup(self) -> None:
        """State that outlives a firing is kept in attributes."""
        self.average = 0.0

    def fire(self, data: flowrl.Batch) -> flowrl.Batch:
        """Take one token and return one. A batch is never changed in place."""
        angle = np.abs(data["next_obs"][:, 2])
        bonus = self.config.weight * (self.average - angle)
        decay = self.config.decay
        self.average = decay * self.average + (1 - decay) * float(angle.mean())
        self.ctx.metrics({"angle_mean": self.average})
        return data.replace(reward=data["reward"] + bonus.astype(np.float32))
