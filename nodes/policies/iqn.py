"""IQN (Dabney et al. 2018b): the quantile function of returns, at fractions that are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrl.core.config import param
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, quantile_means
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import Head, ImplicitHead
from flowrl.nodes.models.numpy_model import acting_fractions
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.value_based import ValueBased, ValueBasedLearnMode


class Iqn(ValueBased):
    """Learns the quantile function of each action's return."""

    class Config(ValueBased.Config):
        double: bool = param(
            False, "the online network chooses the next action, the target network evaluates it"
        )
        dueling: bool = param(False, "quantiles as that of the state plus that of each action")
        cosines: int = param(64, "cosines of the fraction, of which its embedding is made", ge=1)
        fractions: int = param(8, "fractions that are drawn for each row", ge=1)
        target_fractions: int = param(8, "fractions that are drawn for each row's target", ge=1)

    def head(self) -> Head:
        return ImplicitHead(self.action_size, self.config.cosines, self.config.dueling)

    def score_steps(self) -> Sequence[ActingStep]:
        return [quantile_means("q", axis=1)]

    class Learn(ValueBasedLearnMode):
        """Moves Z_tau(s_t, a_t) towards r_t + discount_t * Z_target(s_tp1, a_tp1) at drawn fractions."""

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c, rows = self.config, len(b)
            with torch.no_grad():
                chooser = self.q if c.double else self.q_target
                midpoints = self.tensor(acting_fractions()).unsqueeze(0)
                scores = chooser(b.next_obs, tau=midpoints)["q"].mean(1)
                best = self.best_actions(scores, b.next_obs)
                z_tp1 = self.q_target(b.next_obs, tau=self.uniform(rows, c.target_fractions))["q"]
                z_best = losses.chosen_each(z_tp1.transpose(1, 2), best)  # (B, target_fractions)
                target_t = b.reward.unsqueeze(1) + b.discount.unsqueeze(1) * z_best
            tau = self.uniform(rows, c.fractions)
            z_t = losses.chosen_each(self.q(b.obs, tau=tau)["q"].transpose(1, 2), b.action)
            loss = b.weighted_mean(losses.quantile_huber(z_t, target_t, tau))
            norm = self.q.descend(loss, self.now.lr)
            priority = (target_t.mean(1) - z_t.detach().mean(1)).abs()
            return {"loss": loss, "q": z_t.mean(), "grad_norm": norm, "priority": priority}
