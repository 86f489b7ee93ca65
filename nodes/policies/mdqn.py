"""Munchausen DQN (Vieillard, Pietquin & Geist 2020): the log-policy is added to the reward."""

from __future__ import annotations

from typing import Any, Literal

from flowrl.core.config import param
from flowrl.nodes import losses
from flowrl.nodes.lazy import torch
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.value_based import ValueBased, ValueBasedLearnMode


class Mdqn(ValueBased):
    """Learns soft action values with a bonus for actions that the policy already takes."""

    class Config(ValueBased.Config):
        nstep: Literal[1] = param(1, "rewards in each row; the bonus belongs to one step")
        loss: Literal["huber", "mse"] = param("huber", "loss of the temporal-difference error")
        temperature: Scheduled = scheduled(0.03, "weight of the entropy (tau)", gt=0)
        munchausen: float = param(0.9, "weight of the log-policy in the reward (alpha)", ge=0, le=1)
        least_bonus: float = param(
            -1.0, "a smaller log-policy, times tau, counts as this", le=0, only_with="munchausen"
        )

    class Learn(ValueBasedLearnMode):
        """Moves Q(s_t, a_t) towards the target of equation 1, computed with the target network."""

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c, tau = self.config, self.now.temperature
            with torch.no_grad():
                logp_t = (self.q_target(b.obs)["q"] / tau).log_softmax(-1)
                bonus = (tau * losses.chosen(logp_t, b.action)).clamp(c.least_bonus, 0.0)
                v_tp1 = losses.soft_value(self.q_target(b.next_obs)["q"], tau)
                target_t = b.reward + c.munchausen * bonus + b.discount * v_tp1
            q_t = losses.chosen(self.q(b.obs)["q"], b.action)
            loss = b.weighted_mean(losses.error_loss(c.loss, q_t, target_t))
            norm = self.q.descend(loss, self.now.lr)
            found = {"loss": loss, "q": q_t.mean(), "bonus": bonus.mean(), "grad_norm": norm}
            return {**found, "priority": (target_t - q_t.detach()).abs()}
