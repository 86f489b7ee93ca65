"""The base of algorithms that make the data's actions more likely, the more the better they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param, part
from flowrl.nodes.acting import ActingStep, Columns, NetworkActMode, draw, most_likely, tanh_action
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.distributions import Distribution, distribution_of
from flowrl.nodes.models.heads import FreeHead, Heads, LinearHead, ScalarHead
from flowrl.nodes.models.sampling import LOG_2PI, LOG_STD_LIMITS
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork

DEFAULT_MODEL = {"type": "auto", "hidden": [256, 256]}
WEIGHT_LIMIT = 100.0  # larger weights of rows count as this


class AdvantageWeighted(Algorithm):
    """An algorithm with an actor and critics Q(s, a), which never asks for values of actions far from the data.

    Real-valued actions are normal around the tanh of a head, with one deviation for all observations.
    """

    acting_network, squashes = "actor", True

    class Config(Algorithm.Config):
        actor: Any = part(
            "model", "the network of the policy", shared="model", default=DEFAULT_MODEL
        )
        critic: Any = part("model", "the network of Q(s, a)", shared="model", default=DEFAULT_MODEL)
        critics: int = param(2, "critics, of which the minimum is taken", ge=1)
        nstep: int = param(1, "rewards that are summed before the target bootstraps", ge=1)
        target: TargetRule = follows("how the target critics follow", tau=0.005)
        lr: Scheduled = scheduled(3e-4, "learning rate of the actor", gt=0)
        critic_lr: Scheduled = scheduled(3e-4, "learning rate of the critics", gt=0)

    distribution: Distribution | None  # of discrete actions

    def setup(self) -> None:
        self.distribution = None if self.box else distribution_of(self.action)

    def networks(self) -> dict[str, Net]:
        c, seen = self.config, {"obs": self.obs}
        inputs = {**seen, "action": self.unit_action if self.box else self.action}
        critic = Net(self.model("critic"), inputs, {"q": ScalarHead()}, c.critics, target=c.target)
        masked = "logits" if self.distribution else ""
        actor = Net(self.model("actor"), seen, self.action_heads(), masked=masked)
        return {"actor": actor, "critic": critic}

    def action_heads(self) -> Heads:
        """The parameters of the distribution of actions."""
        if self.distribution is not None:
            return self.distribution.heads
        return {"mean": LinearHead(self.action_size, 0.01), "log_std": FreeHead(self.action_size)}

    def collect_steps(self) -> Sequence[ActingStep]:
        if self.distribution is None:
            return [draw_around("mean", "log_std")]
        return [draw(self.distribution)]

    def eval_steps(self) -> Sequence[ActingStep]:
        if self.distribution is None:
            return [tanh_action("mean")]
        return [most_likely(self.distribution)]


class AdvantageWeightedLearnMode(NetworkLearnMode):
    """Has the actor and the critics, with the actions as both see them."""

    actor: TrainableNetwork
    critic: TrainableNetwork
    critic_target: Network
    policy: AdvantageWeighted

    def actions(self, b: LearnBatch) -> Any:
        """The actions of the rows, real-valued ones in (-1, 1)."""
        return b.unit_action if self.box else b.action

    def logp(self, heads: Any, b: LearnBatch) -> Any:
        """The logarithm of the likelihood of the rows' actions, (B,)."""
        if self.policy.distribution is not None:
            return self.policy.distribution.logp_entropy(heads, b)[0]
        log_std = heads["log_std"].clamp(*LOG_STD_LIMITS)
        z = (b.unit_action - heads["mean"].tanh()) * (-log_std).exp()
        return (-0.5 * (z.square() + LOG_2PI) - log_std).sum(-1)

    def q_min(self, critic: Network, obs: Any, action: Any) -> Any:
        """The smallest value of the critics (B,)."""
        return critic(obs=obs, action=action)["q"].amin(1)

    def learn_critic(self, b: LearnBatch, v_tp1: Any) -> dict[str, Any]:
        """Move Q(s_t, a_t) towards r_t + discount_t v_tp1."""
        target_t = b.reward + b.discount * v_tp1
        q_t = self.critic(obs=b.obs, action=self.actions(b))["q"]  # (B, critics)
        loss = b.weighted_mean((q_t - target_t.unsqueeze(1)).square().sum(1))
        norm = self.critic.descend(loss, self.now.critic_lr)
        priority = (target_t - q_t.detach().mean(1)).abs()
        return {"critic_loss": loss, "q": q_t.mean(), "grad_norm": norm, "priority": priority}

    def learn_actor(self, b: LearnBatch, weight: Any) -> dict[str, Any]:
        """Make the rows' actions more likely, each by its weight (B,)."""
        logp = self.logp(self.actor(b.obs), b)
        loss = -b.weighted_mean(weight * logp)
        self.actor.descend(loss, self.now.lr)
        return {"actor_loss": loss, "actor_weight": weight.mean(), "logp": logp.mean()}


def draw_around(mean: str, log_std: str) -> ActingStep:
    """Draw from a normal distribution around the tanh of a head, clipped to [-1, 1]."""

    def step(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
        std = np.exp(np.clip(columns[log_std], *LOG_STD_LIMITS))
        centre = np.tanh(columns[mean])
        noise = acting.rng.standard_normal(centre.shape, np.float32)
        columns["action"] = np.clip(centre + std * noise, -1, 1)

    return step
