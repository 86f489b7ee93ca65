"""D4PG (Barth-Maron et al. 2018): DDPG with a critic of the distribution of returns on atoms, and n-step returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes import losses
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.ddpg import Ddpg

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network


class D4pg(Ddpg):
    """DDPG whose critic learns the probabilities of fixed returns."""

    class Config(Ddpg.Config):
        critics: Literal[1] = param(1, "there is one critic")
        nstep: int = param(5, "rewards that are summed before the target bootstraps", ge=1)
        atoms: int = param(51, "the number of returns that have a probability", ge=2)
        v_min: float = param(-150.0, "the smallest of these returns; smaller ones count as it")
        v_max: float = param(150.0, "the largest of these returns; larger ones count as it")

    def setup(self) -> None:
        c = self.config
        if c.v_min >= c.v_max:
            what = f"the returns go from {c.v_min:g} to {c.v_max:g}"
            raise UnsoundError(what, "make `v_max` larger than `v_min`", "v_max")
        self.atoms = np.linspace(c.v_min, c.v_max, c.atoms, dtype=np.float32)

    def critic_heads(self) -> Any:
        return {"q": LinearHead(self.config.atoms)}

    class Learn(Ddpg.Learn):
        policy: D4pg

        def learn_critic(self, b: LearnBatch, action_tp1: Any) -> dict[str, Any]:
            """Move the distribution of Z(s_t, a_t) towards that of r_t + discount_t Z_target(s_tp1, a_tp1)."""
            atoms = self.tensor(self.policy.atoms)
            with torch.no_grad():
                p_tp1 = self.logits(self.critic_target, b.next_obs, action_tp1).softmax(-1)
                target_t = losses.categorical_projection(atoms, p_tp1, b.reward, b.discount)
            logp_t = self.logits(self.critic, b.obs, b.unit_action).log_softmax(-1)
            cross_entropy = -(target_t * logp_t).sum(-1)
            loss = b.weighted_mean(cross_entropy)
            norm = self.critic.descend(loss, self.now.critic_lr)
            q_t = (logp_t.detach().exp() @ atoms).mean()
            entropy = torch.special.xlogy(target_t, target_t).sum(-1)
            priority = (cross_entropy.detach() + entropy).clamp(min=0)
            return {"critic_loss": loss, "q": q_t, "grad_norm": norm, "priority": priority}

        def value(self, critic: Network, obs: Any, action: Any) -> Any:
            """The mean return (B,)."""
            return self.logits(critic, obs, action).softmax(-1) @ self.tensor(self.policy.atoms)

        def logits(self, critic: Network, obs: Any, action: Any) -> Any:
            """The logits of the atoms (B, atoms) of the one critic."""
            return critic(obs=obs, action=action)["q"].squeeze(1)
