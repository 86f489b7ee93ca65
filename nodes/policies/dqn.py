"""DQN (Mnih et al. 2015), with double Q-learning, dueling heads and n-step returns."""

from __future__ import annotations

from typing import Any, Literal

from flowrl.core.config import param
from flowrl.nodes import losses
from flowrl.nodes.lazy import torch
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.value_based import ValueBased, ValueBasedLearnMode


class Dqn(ValueBased):
    """Learns the value of each of a few actions, and takes the best one."""

    class Config(ValueBased.Config):
        double: bool = param(
            True, "the online network chooses the next action, the target network evaluates it"
        )
        loss: Literal["huber", "mse"] = param("huber", "loss of the temporal-difference error")

    class Learn(ValueBasedLearnMode):
        """Moves Q(s_t, a_t) towards r_t + discount_t * Q_target(s_tp1, a_tp1)."""

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            loss, _, found = self.td_loss(b)
            norm = self.q.descend(loss, self.now.lr)
            return {"loss": loss, **found, "grad_norm": norm}

        def td_loss(self, b: LearnBatch) -> tuple[Any, Any, dict[str, Any]]:
            """The loss, the values (B, n) of all actions, and what is reported of them."""
            with torch.no_grad():
                q_tp1 = self.q_target(b.next_obs)["q"]
                chooser_tp1 = self.q(b.next_obs)["q"] if self.config.double else q_tp1
                target_t = losses.double_q_target(b.reward, b.discount, q_tp1, chooser_tp1)
            q = self.q(b.obs)["q"]
            q_t = losses.chosen(q, b.action)
            loss = b.weighted_mean(losses.error_loss(self.config.loss, q_t, target_t))
            return loss, q, {"q": q_t.mean(), "priority": (target_t - q_t.detach()).abs()}
