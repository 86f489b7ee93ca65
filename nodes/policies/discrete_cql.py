"""Conservative Q-learning with a few actions (Kumar et al. 2020): DQN on a dataset."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.nodes import losses
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.dqn import Dqn


class DiscreteCql(Dqn):
    """Learns from a fixed set of steps; actions that the data lack are rated low."""

    class Config(Dqn.Config):
        conservatism: float = param(
            1.0, "weight of the gap between the values of all actions and of the data's", ge=0
        )

    class Learn(Dqn.Learn):
        def learn(self, b: LearnBatch) -> dict[str, Any]:
            """One step down the loss of DQN, and conservatism (log sum_a exp Q(s, a) - Q(s, a_t)): equation 4."""
            td_loss, q, found = self.td_loss(b)
            gap = b.weighted_mean(losses.conservative_gap(q, b.action))
            loss = td_loss + self.config.conservatism * gap
            norm = self.q.descend(loss, self.now.lr)
            return {"loss": loss, **found, "gap": gap, "grad_norm": norm}
