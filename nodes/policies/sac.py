"""SAC (Haarnoja et al. 2018b): twin critics, a squashed Gaussian, and a temperature that is learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, draw_squashed, tanh_action
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import LinearHead, ScalarHead
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import LearnedNumber, Network, TrainableNetwork

DEFAULT_MODEL = {"type": "auto", "hidden": [256, 256]}


class Sac(Algorithm):
    """Learns a policy of high return and entropy from replayed steps."""

    actions, other_algorithms = "real", "dqn or discrete_sac"
    acting_network, squashes = "actor", True

    class Config(Algorithm.Config):
        actor: Any = part(
            "model", "the network of the policy", shared="model", default=DEFAULT_MODEL
        )
        critic: Any = part("model", "the network of Q(s, a)", shared="model", default=DEFAULT_MODEL)
        critics: int = param(2, "critics, of which targets take the minimum", ge=1)
        nstep: int = param(1, "rewards that are summed before the target bootstraps", ge=1)
        target: TargetRule = follows("how the target critics follow", tau=0.005)
        lr: Scheduled = scheduled(3e-4, "learning rate of the actor and the temperature", gt=0)
        critic_lr: Scheduled = scheduled(1e-3, "learning rate of the critics", gt=0)
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
        critic = Net(self.model("critic"), inputs, self.critic_heads(), c.critics, target=c.target)
        return {"actor": Net(self.model("actor"), seen, heads), "critic": critic}

    def critic_heads(self) -> Any:
        return {"q": ScalarHead()}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [draw_squashed("mean", "log_std")]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [tanh_action("mean")]

    class Learn(NetworkLearnMode):
        """One gradient step for the critics, the actor and the temperature each."""

        actor: TrainableNetwork
        critic: TrainableNetwork
        critic_target: Network
        log_alpha: LearnedNumber
        policy: Sac

        def begin(self) -> None:
            self.log_alpha = self.learned_number(math.log(self.config.alpha))

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            alpha = self.log_alpha.value.detach().exp()
            return {**self.learn_critic(b, alpha), **self.learn_actor(b, alpha)}

        def learn_actor(self, b: LearnBatch, alpha: Any) -> dict[str, Any]:
            """One step for the actor, down alpha log pi - min Q, and one for the temperature."""
            action_t, logp_t = self.draw(b.obs)
            actor_loss = (alpha * logp_t - self.value(self.critic, b.obs, action_t)).mean()
            self.actor.descend(actor_loss, self.now.lr)
            if self.config.learn_alpha:
                goal = self.config.entropy_goal * self.policy.action_size
                surplus = -logp_t.detach().mean() - goal  # of entropy
                self.log_alpha.descend(self.log_alpha.value * surplus, self.now.lr)
            return {"actor_loss": actor_loss, "alpha": alpha, "entropy": -logp_t.mean()}

        def learn_critic(self, b: LearnBatch, alpha: Any) -> dict[str, Any]:
            """One step for the critics down their temporal-difference errors."""
            loss, q_t, target_t = self.critic_loss(b, alpha)
            norm = self.critic.descend(loss, self.now.critic_lr)
            priority = (target_t - q_t.detach().mean(1)).abs()
            return {"critic_loss": loss, "q": q_t.mean(), "grad_norm": norm, "priority": priority}

        def critic_loss(self, b: LearnBatch, alpha: Any) -> tuple[Any, Any, Any]:
            """The squared distance of Q(s_t, a_t) from its target, Q (B, critics), and the target (B,).

            The target is r_t + discount_t (min Q_target(s_tp1, a_tp1) - alpha log pi).
            """
            with torch.no_grad():
                action_tp1, logp_tp1 = self.draw(b.next_obs)
                v_tp1 = self.value(self.critic_target, b.next_obs, action_tp1)
                target_t = b.reward + b.discount * (v_tp1 - alpha * logp_tp1)
            q_t = self.critic(obs=b.obs, action=b.unit_action)["q"]
            loss = b.weighted_mean((q_t - target_t.unsqueeze(1)).square().sum(1))
            return loss, q_t, target_t

        def draw(self, obs: Any) -> tuple[Any, Any]:
            """Actions (B, n) in (-1, 1) of the policy, and the logarithms of their likelihoods (B,)."""
            heads = self.actor(obs)
            noise = self.normal(*heads["mean"].shape)
            return losses.squashed_gaussian(heads["mean"], heads["log_std"], noise)

        def value(self, critic: Network, obs: Any, action: Any) -> Any:
            """The smallest value of the critics (B,)."""
            return critic(obs=obs, action=action)["q"].amin(1)
