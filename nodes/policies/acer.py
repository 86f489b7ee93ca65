"""ACER (Wang et al. 2017): an actor-critic that learns from replayed sequences, with Retrace and a trust region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import param
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, Columns, NetworkActMode
from flowrl.nodes.actor_critic import ActorCritic
from flowrl.nodes.algorithm import Net, UnrollRule
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.lazy import torch
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.models.numpy_model import MEMORY, softmax
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.returns import retrace
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork


class Acer(ActorCritic):
    """Learns a policy and action values from sequences of steps, whose probabilities when collecting are a column.

    A collector outputs single steps, and a `sequence_buffer` cuts sequences from them.
    """

    reads = ("obs", "next_obs", "action", "reward", "discount", "last", "valid", "behaviour")
    actions, other_algorithms = "discrete", "ppo or sac"
    unrolls: ClassVar[UnrollRule] = "always"
    on_policy, learns_across_rows = False, False

    class Config(ActorCritic.Config):
        unroll_steps: int = param(16, "steps of a sequence; the same as in the buffer", ge=2)
        lr: Scheduled = scheduled(7e-4, "learning rate", gt=0)
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        target: TargetRule = follows("how the average policy follows the policy", tau=0.01)
        ratio_limit: float = param(
            10.0, "limit of the ratios that weight actions taken; others correct for it (c)", gt=0
        )
        retrace_lambda: float = param(
            1.0,
            "1: values sum all rewards of a sequence; 0: they rely on the next value",
            ge=0,
            le=1,
        )
        divergence_slope: float | None = param(
            1.0,
            "limit of a gradient's slope in the divergence from the average policy; null: no limit",
            gt=0,
        )

    def networks(self) -> dict[str, Net]:
        heads = {**self.distribution.heads, "q": LinearHead(self.action_size)}
        seen, target = {"obs": self.obs}, self.config.target
        return {"net": Net(self.model(), seen, heads, target=target, masked="logits")}

    def collect_columns(self) -> Schema:
        behaviour = Column("float32", (self.action_size,), low=0.0, high=1.0)
        return {"action": self.action, "behaviour": behaviour}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [behaviour_probabilities, *super().collect_steps()]

    @property
    def unroll_steps(self) -> None:
        """None, because collectors output single steps, from which the buffer cuts sequences."""
        return

    def priority_column(self) -> Column:
        return Column("float32", (self.config.unroll_steps,))

    class Learn(NetworkLearnMode):
        """One gradient step on the sequences of a batch."""

        net: TrainableNetwork
        net_target: Network  # the average policy

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c, heads = self.config, self.unrolled(self.net, b)
            logits, q = heads["logits"], heads["q"]  # (W, T + 1, n)
            logp_t = logits[:, :-1].log_softmax(-1)
            p_t, q_t = logp_t.exp(), q[:, :-1]
            with torch.no_grad():
                return_t = self.returns(b, logits.softmax(-1), q)
                gradient = losses.bias_corrected_gradient(
                    p_t, b.behaviour, b.action, q_t, return_t, c.ratio_limit
                )
                if c.divergence_slope is not None:
                    average = self.unrolled(self.net_target, b)["logits"][:, :-1].softmax(-1)
                    slope = p_t - average  # of KL(average || policy), by the logits
                    gradient = losses.limited_gradient(gradient, slope, c.divergence_slope)
            q_taken = losses.chosen(q_t, b.action)
            policy_loss = self.mean(b, -(gradient * logits[:, :-1]).sum(-1))
            value_loss = self.mean(b, (q_taken - return_t).square())
            entropy = self.mean(b, -(p_t * logp_t).sum(-1))
            loss = policy_loss + c.value_weight * value_loss - self.now.entropy_weight * entropy
            norm = self.net.descend(loss, self.now.lr)
            return {
                "value_loss": value_loss,
                "entropy": entropy,
                "q": self.mean(b, q_taken),
                "grad_norm": norm,
                "priority": (return_t - q_taken.detach()).abs() * b.valid,
            }

        def returns(self, b: LearnBatch, p: Any, q: Any) -> Any:
            """The Retrace targets of Q(s_t, a_t) (equation 5), shaped as `b.reward`."""
            ratio = losses.chosen(p[:, :-1], b.action) / losses.chosen(b.behaviour, b.action)
            q_t, v_tp1 = losses.chosen(q[:, :-1], b.action), (p * q).sum(-1)[:, 1:]
            columns = (ratio.roll(-1, 1), b.reward, b.discount, q_t, v_tp1, b.last)
            flat = (to_numpy(column.flatten()) for column in columns)
            found = retrace(*flat, lambda_=self.config.retrace_lambda)
            return self.tensor(found.astype(np.float32).reshape(b.array("reward").shape))

        def unrolled(self, net: Network, b: LearnBatch) -> Any:
            """The heads of all steps, and of the last step's next observation."""
            begins = torch.zeros_like(b.valid[:, :1]).expand(-1, b.valid.shape[1] + 1)
            return net.unroll(b.joined_obs(), b.memory if MEMORY in b else None, begins)

        def mean(self, b: LearnBatch, values: Any) -> Any:
            """The mean of the values of valid steps, scaled by the weights of a prioritised buffer."""
            weighted = values * b.valid * (b.weight.unsqueeze(1) if "weight" in b else 1.0)
            return self.mean_where(b.valid, weighted)


def behaviour_probabilities(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
    """Give the probabilities of all actions, with which the action is then drawn."""
    columns["behaviour"] = softmax(columns["logits"])
