"""Nodes of your own: a function where a node keeps nothing, a class where it does."""

from __future__ import annotations

import numpy as np

import flowrl


@flowrl.as_node
def scale_reward(data: flowrl.Batch, *, factor: float = 1.0) -> flowrl.Batch:
    """Every reward times a factor. Inputs are positional, parameters keyword-only."""
    return data.replace(reward=data["reward"] * np.float32(factor))


class Upright(flowrl.Node):
    """Adds to each reward a bonus for a pole that stands straighter than it did on the average."""

    data = flowrl.In("samples")
    out = flowrl.Out("samples", about="the same rows, with the bonus in their reward")

    class Config(flowrl.Config):
        """What the graph may set."""

        weight: float = flowrl.param(0.1, "of the bonus in the reward", ge=0)
        decay: float = flowrl.param(0.99, "of the average, each token", ge=0, lt=1)

    def setup(self) -> None:
        """All that must survive from one firing to the next lies in attributes."""
        self.average = 0.0

    def fire(self, data: flowrl.Batch) -> flowrl.Batch:
        """One token in, one out; batches are never changed, but replaced."""
        angle = np.abs(data["next_obs"][:, 2])
        bonus = self.config.weight * (self.average - angle)
        decay = self.config.decay
        self.average = decay * self.average + (1 - decay) * float(angle.mean())
        self.ctx.metrics({"angle_mean": self.average})
        return data.replace(reward=data["reward"] + bonus.astype(np.float32))
