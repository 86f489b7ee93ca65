"""MASAC: SAC (Haarnoja et al. 2018b) of several agents, with critics that see what all do (Lowe et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.config import param
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, draw_squashed, tanh_action
from flowrl.nodes.algorithm import Net
from flowrl.nodes.central_critic import JointCritic, JointCriticLearnMode
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import LearnedNumber, Network


class Masac(JointCritic):
    """Learns a policy of high return and entropy of each agent, from replayed steps.

    The entropy of all agents counts beside the reward of the team, or that of an agent beside its own reward.
    """

    actions, other_algorithms = "real", "mappo, qmix or maddpg"

    class Config(JointCritic.Config):
        critics: int = param(2, "critics, of which targets take the minimum", ge=1)
        target: TargetRule = follows("how the target critics follow", tau=0.005)
        lr: Scheduled = scheduled(3e-4, "learning rate of the actor and the temperature", ge=0)
        critic_lr: Scheduled = scheduled(1e-3, "learning rate of the critics", ge=0)
        alpha: float = param(0.1, "the first temperature, or the constant one", gt=0)
        learn_alpha: bool = param(True, "learn the temperature; if false, it is constant")
        entropy_goal: float = param(
            -1.0,
            "the entropy of each agent that the temperature aims at, for each component of the action",
            only_with="learn_alpha",
        )
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )

    def networks(self) -> dict[str, Net]:
        c, n = self.config, self.action_size
        heads = {"mean": LinearHead(n, 0.01), "log_std": LinearHead(n, 0.01)}
        q = {"value": self.value_head()}
        critic = Net(self.model("critic"), self.critic_inputs, q, copies=c.critics, target=c.target)
        return {"actor": Net(self.model("actor"), {"obs": self.own_obs}, heads), "critic": critic}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [draw_squashed("mean", "log_std")]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [tanh_action("mean")]

    class Learn(JointCriticLearnMode):
        """One gradient step for the critics, the actor and the temperature each."""

        log_alpha: LearnedNumber
        policy: Masac

        def begin(self) -> None:
            self.log_alpha = self.learned_number(math.log(self.config.alpha))

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            alpha = self.log_alpha.value.detach().exp()
            b.add(actions=self.joint(b.unit_action, b.obs))
            q_t = self.critic(state=self.state_of(b.obs), actions=b.actions)["value"]
            found = self.learn_critic(b, q_t, self.target_values(b, alpha))
            return {**found, **self.learn_actor(b, alpha)}

        def target_values(self, b: LearnBatch, alpha: Any) -> Tensor:
            """r_t + discount_t (min Q_target(s_tp1, a_tp1) - alpha log pi): (B, V)."""
            with torch.no_grad():
                action_tp1, logp_tp1 = self.draw(b.next_obs)
                joint = self.joint(action_tp1, b.next_obs)
                q_tp1 = self.value(self.critic_target, self.state_of(b.next_obs), joint)
                soft = q_tp1 - alpha * self.of_values(logp_tp1)
                reward, discount = self.tensor(self.rewards(b)), self.tensor(self.discounts(b))
                found: Tensor = reward + discount * soft
            return found

        def of_values(self, logp: Tensor) -> Tensor:
            """The likelihoods (B, V) whose entropy counts for each value: an agent's own, or the sum of all."""
            return logp if self.has_own_rewards else logp.sum(-1, keepdim=True)

        def learn_actor(self, b: LearnBatch, alpha: Any) -> dict[str, Any]:
            """One step for the actor, down alpha log pi - min Q, and one for the temperature."""
            alive = self.alive(b.obs)
            action, logp = self.draw(b.obs)
            q = self.value_of_own_action(b, action.detach(), action)
            loss = self.mean_where(alive, (alpha * logp - q) * alive)
            self.actor.descend(loss, self.now.lr)
            entropy = -self.mean_where(alive, logp.detach())
            if self.config.learn_alpha:
                goal = self.config.entropy_goal * self.policy.action_size
                self.log_alpha.descend(self.log_alpha.value * (entropy - goal), self.now.lr)
            return {"actor_loss": loss, "alpha": alpha, "entropy": entropy}

        def draw(self, obs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
            """Actions (B, N, n) in (-1, 1), and the logarithms of their likelihoods (B, N), 0 for absent agents."""
            heads = self.actor(self.own(obs))
            noise = self.normal(*heads["mean"].shape)
            action, logp = losses.squashed_gaussian(heads["mean"], heads["log_std"], noise)
            return action, logp * self.alive(obs)

        def value(self, critic: Network, state: Tensor, joint: Tensor) -> Tensor:
            """The smallest values of the critics (…, V)."""
            found: Tensor = critic(state=state, actions=joint)["value"].amin(state.dim() - 1)
            return found
