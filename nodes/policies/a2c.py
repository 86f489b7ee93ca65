"""A2C (Mnih et al. 2016): one gradient step on each token, with generalised advantages."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param, part
from flowrl.nodes.actor_critic import ActorCritic, ActorCriticLearnMode
from flowrl.nodes.advantages import AdvantagePlace, advantages_param
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.schedules import Scheduled, scheduled


class A2c(ActorCritic):
    """Improves the policy on its own data, which it sees once."""

    class Config(ActorCritic.Config):
        gae_lambda: float = param(
            1.0, "1: advantages sum all rewards; 0: they rely on the next value", ge=0, le=1
        )
        advantages: AdvantagePlace = advantages_param()
        lr: Scheduled = scheduled(7e-4, "learning rate", ge=0)
        optimiser: Any = part(
            "optimiser", "the optimiser of all networks", default={"type": "rmsprop", "eps": 1e-5}
        )
        max_grad_norm: float | None = param(
            0.5, "longer gradients are scaled down to this norm; null: none are", gt=0
        )

    class Learn(ActorCriticLearnMode):
        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c = self.config
            advantage, target = self.advantages(b)
            heads = self.heads(b)
            logp, entropy = self.policy.distribution.logp_entropy(heads, b)
            policy_loss = -(logp * advantage).mean()
            value_loss = (heads["value"] - target).square().mean()
            entropy = entropy.mean()
            loss = policy_loss + c.value_weight * value_loss - self.now.entropy_weight * entropy
            norm = self.net.descend(loss, self.now.lr)
            found = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
            return {**found, "grad_norm": norm}
