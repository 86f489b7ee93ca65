"""TQC (Kuznetsov et al. 2020): SAC with quantile critics, of whose joint quantiles the largest are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes import losses
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.sac import Sac

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network


class Tqc(Sac):
    """SAC whose critics learn quantiles; dropping the largest corrects overestimation."""

    class Config(Sac.Config):
        quantiles: int = param(25, "quantiles of each critic", ge=1)
        dropped: int = param(2, "largest quantiles that are dropped, for each critic", ge=0)

    def setup(self) -> None:
        c = self.config
        if c.dropped >= c.quantiles:
            what = f"{c.dropped} of {c.quantiles} quantiles are dropped, so none is left"
            raise UnsoundError(what, "make `dropped` smaller", "dropped")
        self.fractions = ((np.arange(c.quantiles) + 0.5) / c.quantiles).astype(np.float32)

    def critic_heads(self) -> Any:
        return {"q": LinearHead(self.config.quantiles)}

    class Learn(Sac.Learn):
        policy: Tqc

        def learn_critic(self, b: LearnBatch, alpha: Any) -> dict[str, Any]:
            """Move the quantiles towards r_t + discount_t (z - alpha log pi) for the kept quantiles z (equation 10)."""
            c = self.config
            with torch.no_grad():
                action_tp1, logp_tp1 = self.draw(b.next_obs)
                z_tp1 = self.critic_target(obs=b.next_obs, action=action_tp1)["q"]
                joint = z_tp1.flatten(1).sort(1).values[:, : c.critics * (c.quantiles - c.dropped)]
                v_tp1 = joint - alpha * logp_tp1.unsqueeze(1)
                target_t = b.reward.unsqueeze(1) + b.discount.unsqueeze(1) * v_tp1
            z_t = self.critic(obs=b.obs, action=b.unit_action)["q"]  # (B, critics, quantiles)
            fractions = self.tensor(self.policy.fractions)
            targets = target_t.unsqueeze(1).expand(-1, c.critics, -1)
            error = losses.quantile_huber(z_t, targets, fractions).sum(1) / c.quantiles
            loss = b.weighted_mean(error)
            norm = self.critic.descend(loss, self.now.critic_lr)
            priority = (target_t.mean(1) - z_t.detach().flatten(1).mean(1)).abs()
            return {"critic_loss": loss, "q": z_t.mean(), "grad_norm": norm, "priority": priority}

        def value(self, critic: Network, obs: Any, action: Any) -> Any:
            """The mean of all quantiles (B,), of which the actor's loss is made."""
            return critic(obs=obs, action=action)["q"].flatten(1).mean(1)
