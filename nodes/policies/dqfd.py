"""Deep Q-learning from demonstrations (Hester et al. 2018): DQN with a margin for the demonstrated actions."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.nodes import losses
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.dqn import Dqn


class Dqfd(Dqn):
    """Learns action values from rows of which some are demonstrations (`demos -> buffer.demos`)."""

    reads = ("obs", "next_obs", "action", "reward", "discount", "is_demo")

    class Config(Dqn.Config):
        margin: float = param(
            0.8,
            "by which a demonstrated action is to exceed the others in value",
            ge=0,
            only_with="margin_weight",
        )
        margin_weight: float = param(1.0, "weight of the margin's loss", ge=0)

    class Learn(Dqn.Learn):
        def learn(self, b: LearnBatch) -> dict[str, Any]:
            """One step down the loss of DQN, and the margin's on demonstrations: equation 5."""
            td_loss, q, found = self.td_loss(b)
            error = losses.margin_loss(q, b.action, self.config.margin) * b.is_demo
            margin_loss = b.weighted_mean(error)
            loss = td_loss + self.config.margin_weight * margin_loss
            norm = self.q.descend(loss, self.now.lr)
            return {"loss": loss, **found, "margin_loss": margin_loss, "grad_norm": norm}
