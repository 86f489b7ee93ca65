"""TD3 (Fujimoto, van Hoof & Meger 2018): a deterministic actor, twin critics, and smoothed target actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, add_noise, tanh_action
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import LinearHead, ScalarHead
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork

DEFAULT_MODEL = {"type": "auto", "hidden": [256, 256]}


class Td3(Algorithm):
    """Learns a deterministic policy from replayed steps."""

    actions, other_algorithms = "real", "dqn"
    acting_network, squashes = "actor", True

    class Config(Algorithm.Config):
        actor: Any = part(
            "model", "the network of the policy", shared="model", default=DEFAULT_MODEL
        )
        critic: Any = part("model", "the network of Q(s, a)", shared="model", default=DEFAULT_MODEL)
        critics: int = param(2, "critics, of which targets take the minimum", ge=1)
        nstep: int = param(1, "rewards that are summed before the target bootstraps", ge=1)
        target: TargetRule = follows(tau=0.005)
        lr: Scheduled = scheduled(1e-3, "learning rate of the actor", gt=0)
        critic_lr: Scheduled = scheduled(1e-3, "learning rate of the critics", gt=0)
        noise: Scheduled = scheduled(
            0.1, "deviation of the noise when collecting, in half ranges of the action", ge=0
        )
        smoothing: float = param(0.2, "the same, of the noise in target actions", ge=0)
        smoothing_limit: float = param(
            0.5, "this noise is clipped to ± this value", gt=0, only_with="smoothing"
        )
        actor_every_iters: int = param(2, "critic steps for each step of the actor", ge=1)

    def networks(self) -> dict[str, Net]:
        c, n, seen = self.config, self.action_size, {"obs": self.obs}
        inputs = {**seen, "action": self.unit_action}
        actor = Net(self.model("actor"), seen, {"action": LinearHead(n, 0.01)}, target=c.target)
        critic = Net(self.model("critic"), inputs, self.critic_heads(), c.critics, target=c.target)
        return {"actor": actor, "critic": critic}

    def critic_heads(self) -> Any:
        return {"q": ScalarHead()}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [tanh_action("action"), add_noise("noise")]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [tanh_action("action")]

    class Learn(NetworkLearnMode):
        """One gradient step for the critics, and for the actor in every so many iterations."""

        actor: TrainableNetwork
        actor_target: Network
        critic: TrainableNetwork
        critic_target: Network

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            found = self.learn_critic(b, self.next_actions(b))
            if self.iters % self.config.actor_every_iters == 0:
                loss = self.actor_loss(b)
                self.actor.descend(loss, self.now.lr)
                found["actor_loss"] = loss
            return found

        def actor_loss(self, b: LearnBatch) -> Any:
            """-Q(s_t, pi(s_t)), the mean over the rows."""
            action_t = self.actor(b.obs)["action"].tanh()
            return -self.value(self.critic, b.obs, action_t).mean()

        def next_actions(self, b: LearnBatch) -> Any:
            """The target actor's actions with clipped noise: equation 14."""
            c = self.config
            with torch.no_grad():
                action = self.actor_target(b.next_obs)["action"].tanh()
                noise = self.normal(*action.shape) * c.smoothing
                return losses.smoothed_action(action, noise, c.smoothing_limit)

        def learn_critic(self, b: LearnBatch, action_tp1: Any) -> dict[str, Any]:
            """Move Q(s_t, a_t) towards r_t + discount_t min Q_target(s_tp1, a_tp1)."""
            with torch.no_grad():
                q_tp1 = self.critic_target(obs=b.next_obs, action=action_tp1)["q"].amin(1)
                target_t = b.reward + b.discount * q_tp1
            q_t = self.critic(obs=b.obs, action=b.unit_action)["q"]  # (B, critics)
            loss = b.weighted_mean((q_t - target_t.unsqueeze(1)).square().sum(1))
            norm = self.critic.descend(loss, self.now.critic_lr)
            priority = (target_t - q_t.detach().mean(1)).abs()
            return {"critic_loss": loss, "q": q_t.mean(), "grad_norm": norm, "priority": priority}

        def value(self, critic: Network, obs: Any, action: Any) -> Any:
            """The value (B,) that the actor increases: that of the first critic."""
            return critic(obs=obs, action=action)["q"][:, 0]
