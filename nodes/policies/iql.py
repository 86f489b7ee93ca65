"""Implicit Q-learning (Kostrikov, Nair & Levine 2022): learns from a dataset, and asks for its own actions only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.advantage_weighted import (
    DEFAULT_MODEL,
    WEIGHT_LIMIT,
    AdvantageWeighted,
    AdvantageWeightedLearnMode,
)
from flowrl.nodes.algorithm import Net
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import ScalarHead
from flowrl.nodes.network_learn_mode import LearnBatch

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainableNetwork


class Iql(AdvantageWeighted):
    """Learns a high expectile V of the data's action values, and imitates actions by how far they exceed it."""

    class Config(AdvantageWeighted.Config):
        value: Any = part("model", "the network of V(s)", shared="model", default=DEFAULT_MODEL)
        expectile: float = param(
            0.7,
            "which expectile V is; near 1, it is the value of the best action in the data",
            gt=0,
            lt=1,
        )
        inverse_temperature: float = param(
            3.0, "how fast an action's weight grows with its advantage (beta)", ge=0
        )

    def networks(self) -> dict[str, Net]:
        value = Net(self.model("value"), {"obs": self.obs}, {"v": ScalarHead()})
        return {**super().networks(), "value": value}

    class Learn(AdvantageWeightedLearnMode):
        """One gradient step for the value, the actor and the critics each."""

        value: TrainableNetwork

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c = self.config
            with torch.no_grad():
                q_t = self.q_min(self.critic_target, b.obs, self.actions(b))
                v_tp1 = self.value(b.next_obs)["v"]
            advantage = q_t - self.value(b.obs)["v"]
            value_loss = b.weighted_mean(losses.expectile_loss(advantage, c.expectile))
            self.value.descend(value_loss, self.now.critic_lr)  # equation 5
            weight = (c.inverse_temperature * advantage.detach()).exp().clamp(max=WEIGHT_LIMIT)
            actor = self.learn_actor(b, weight)  # equation 7
            critic = self.learn_critic(b, v_tp1)  # equation 6
            return {"value_loss": value_loss, "v": v_tp1.mean(), **actor, **critic}
