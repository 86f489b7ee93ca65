"""QR-DQN (Dabney et al. 2018a): the distribution of returns as quantiles at fixed fractions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrl.core.config import param
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, quantile_means
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import Head, action_values
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.value_based import ValueBased, ValueBasedLearnMode


class Qrdqn(ValueBased):
    """Learns quantiles of each action's return."""

    class Config(ValueBased.Config):
        double: bool = param(
            False, "the online network chooses the next action, the target network evaluates it"
        )
        dueling: bool = param(False, "quantiles as those of the state plus those of each action")
        quantiles: int = param(50, "the number of quantiles", ge=1)

    def setup(self) -> None:
        count = self.config.quantiles
        self.fractions = ((np.arange(count) + 0.5) / count).astype(np.float32)  # lemma 2

    def head(self) -> Head:
        return action_values(self.action_size, self.config.dueling, self.config.quantiles)

    def score_steps(self) -> Sequence[ActingStep]:
        return [quantile_means("q")]

    class Learn(ValueBasedLearnMode):
        """Moves the quantiles of Z(s_t, a_t) towards those of r_t + discount_t * Z_target(s_tp1, a_tp1)."""

        policy: Qrdqn

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            with torch.no_grad():
                z_tp1 = self.q_target(b.next_obs)["q"]  # (B, n, quantiles)
                chooser = self.q(b.next_obs)["q"] if self.config.double else z_tp1
                z_best = losses.chosen_each(z_tp1, chooser.mean(-1).argmax(-1))
                target_t = b.reward.unsqueeze(1) + b.discount.unsqueeze(1) * z_best
            z_t = losses.chosen_each(self.q(b.obs)["q"], b.action)
            fractions = self.tensor(self.policy.fractions)
            error = losses.quantile_huber(z_t, target_t, fractions)
            loss = b.weighted_mean(error)
            norm = self.q.descend(loss, self.now.lr)
            priority = (target_t.mean(1) - z_t.detach().mean(1)).abs()
            return {"loss": loss, "q": z_t.mean(), "grad_norm": norm, "priority": priority}
