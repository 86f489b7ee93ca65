"""SAC with a few actions (Christodoulou 2019): expectations over actions are exact sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, draw, greedy
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.distributions import Categorical
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import LearnedNumber, Network, TrainableNetwork

DEFAULT_MODEL = {"type": "auto", "hidden": [128, 128]}


class DiscreteSac(Algorithm):
    """Learns a policy of high return and entropy over a few actions, from replayed steps."""

    actions, other_algorithms = "discrete", "sac"
    acting_network = "actor"

    class Config(Algorithm.Config):
        actor: Any = part(
            "model", "the network of the policy", shared="model", default=DEFAULT_MODEL
        )
        critic: Any = part("model", "the network of Q(s, ·)", shared="model", default=DEFAULT_MODEL)
        critics: int = param(2, "critics, of which targets take the minimum", ge=1)
        nstep: int = param(1, "rewards that are summed before the target bootstraps", ge=1)
        target: TargetRule = follows("how the target critics follow", tau=0.005)
        lr: Scheduled = scheduled(3e-4, "learning rate of the actor and the temperature", gt=0)
        critic_lr: Scheduled = scheduled(1e-3, "learning rate of the critics", gt=0)
        alpha: float = param(0.2, "the first temperature, or the constant one", gt=0)
        learn_alpha: bool = param(True, "learn the temperature; if false, it is constant")
        entropy_goal: float = param(
            0.3,
            "the entropy that the temperature aims at, as a share of the largest",
            ge=0,
            le=1,
            only_with="learn_alpha",
        )

    def networks(self) -> dict[str, Net]:
        c, n, seen = self.config, self.action_size, {"obs": self.obs}
        actor = Net(self.model("actor"), seen, {"logits": LinearHead(n, 0.01)}, masked="logits")
        critic = Net(
            self.model("critic"), seen, {"q": LinearHead(n)}, copies=c.critics, target=c.target
        )
        return {"actor": actor, "critic": critic}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [draw(Categorical(self.action))]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [greedy("logits")]

    class Learn(NetworkLearnMode):
        """One gradient step for the critics, the actor and the temperature each."""

        actor: TrainableNetwork
        critic: TrainableNetwork
        critic_target: Network
        log_alpha: LearnedNumber
        policy: DiscreteSac

        def begin(self) -> None:
            self.log_alpha = self.learned_number(math.log(self.config.alpha))

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            alpha = self.log_alpha.value.detach().exp()
            with torch.no_grad():
                logp_tp1 = self.actor(b.next_obs)["logits"].log_softmax(-1)
                q_tp1 = self.critic_target(b.next_obs)["q"].amin(1)
                v_tp1 = (logp_tp1.exp() * (q_tp1 - alpha * logp_tp1)).sum(-1)
                target_t = b.reward + b.discount * v_tp1
            q = self.critic(b.obs)["q"]  # (B, critics, n)
            q_t = losses.chosen(q, b.action.unsqueeze(1).expand(-1, q.shape[1]))
            critic_loss = b.weighted_mean((q_t - target_t.unsqueeze(1)).square().sum(1))
            norm = self.critic.descend(critic_loss, self.now.critic_lr)

            logp_t = self.actor(b.obs)["logits"].log_softmax(-1)
            p_t = logp_t.exp()
            actor_loss = (p_t * (alpha * logp_t - q.detach().amin(1))).sum(-1).mean()
            self.actor.descend(actor_loss, self.now.lr)
            entropy = -(p_t * logp_t).sum(-1).detach().mean()
            if self.config.learn_alpha:
                goal = self.config.entropy_goal * math.log(self.policy.action_size)
                self.log_alpha.descend(self.log_alpha.value * (entropy - goal), self.now.lr)
            return {
                "critic_loss": critic_loss,
                "actor_loss": actor_loss,
                "q": q_t.mean(),
                "alpha": alpha,
                "entropy": entropy,
                "grad_norm": norm,
                "priority": (target_t - q_t.detach().mean(1)).abs(),
            }
