"""CrossQ (Bhatt et al. 2024): SAC without target networks, whose critics normalise by batch renormalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.sac import Sac
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainableNetwork

ACTOR = {"type": "auto", "hidden": [256, 256], "norm": "batch"}
CRITIC = {"type": "auto", "hidden": [2048, 2048], "norm": "batch"}


class Crossq(Sac):
    """Learns a policy of high return and entropy from replayed steps, in fewer steps than SAC."""

    learns_batch_statistics = True

    class Config(Algorithm.Config):
        actor: Any = part("model", "the network of the policy", shared="model", default=ACTOR)
        critic: Any = part("model", "the network of Q(s, a)", shared="model", default=CRITIC)
        critics: int = param(2, "critics, of which targets take the minimum", ge=1)
        nstep: int = param(1, "rewards that are summed before the target bootstraps", ge=1)
        lr: Scheduled = scheduled(1e-3, "learning rate of the actor and the temperature", gt=0)
        critic_lr: Scheduled = scheduled(1e-3, "learning rate of the critics", gt=0)
        optimiser: Any = part(
            "optimiser", "the optimiser of all networks", default={"type": "adam", "beta1": 0.5}
        )
        actor_every_iters: int = param(3, "critic steps for each step of the actor", ge=1)
        alpha: float = param(1.0, "the first temperature, or the constant one", gt=0)
        learn_alpha: bool = param(True, "learn the temperature; if false, it is constant")
        entropy_goal: float = param(
            -1.0,
            "the entropy that the temperature aims at, for each component of the action",
            only_with="learn_alpha",
        )

    def networks(self) -> dict[str, Net]:
        c, n, seen = self.config, self.action_size, {"obs": self.obs}
        heads = {"mean": LinearHead(n, 0.01), "log_std": LinearHead(n, 0.01)}
        inputs = {**seen, "action": self.unit_action}
        critic = Net(self.model("critic"), inputs, self.critic_heads(), c.critics)
        return {"actor": Net(self.model("actor"), seen, heads), "critic": critic}

    class Learn(Sac.Learn):
        """One gradient step for the critics; in every so many iterations, one for the actor and the temperature."""

        actor: TrainableNetwork
        critic: TrainableNetwork

        def begin(self) -> None:
            super().begin()
            self.actor.module.eval()
            self.critic.module.eval()

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            alpha = self.log_alpha.value.detach().exp()
            found = self.learn_critic(b, alpha)
            if self.iters % self.config.actor_every_iters == 0:
                with self.actor.batch_statistics():
                    found |= self.learn_actor(b, alpha)
            return found

        def learn_critic(self, b: LearnBatch, alpha: Any) -> dict[str, Any]:
            """Move Q(s_t, a_t) towards r_t + discount_t (min Q(s_tp1, a_tp1) - alpha log pi) (figure 1).

            Both values come from one pass, so the statistics of the batch are those of both kinds of actions.
            """
            with torch.no_grad():
                action_tp1, logp_tp1 = self.draw(b.next_obs)
            action = torch.cat([b.unit_action, action_tp1])
            with self.critic.batch_statistics():
                q = self.critic(obs=joined_rows(b.obs, b.next_obs), action=action)["q"]
            q_t, q_tp1 = q[: len(b)], q[len(b) :]  # (B, critics)
            v_tp1 = q_tp1.detach().amin(1) - alpha * logp_tp1
            target_t = b.reward + b.discount * v_tp1
            loss = b.weighted_mean((q_t - target_t.unsqueeze(1)).square().sum(1))
            norm = self.critic.descend(loss, self.now.critic_lr)
            priority = (target_t - q_t.detach().mean(1)).abs()
            return {"critic_loss": loss, "q": q_t.mean(), "grad_norm": norm, "priority": priority}


def joined_rows(one: Any, other: Any) -> Any:
    """The rows of two observations, which are by leaf if they are nested."""
    if isinstance(one, dict):
        return {leaf: torch.cat([x, other[leaf]]) for leaf, x in one.items()}
    return torch.cat([one, other])
