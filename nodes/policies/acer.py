"""ACER (Wang et al. 2017): an actor-critic that learns from replayed sequences, with Retrace and a trust region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, Columns, NetworkActMode, draw, greedy
from flowrl.nodes.actor_critic import DEFAULT_MODEL
from flowrl.nodes.algorithm import Algorithm, Net, TargetRule, UnrollRule, follows
from flowrl.nodes.distributions import Categorical
from flowrl.nodes.lazy import tensor, torch
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.models.numpy_model import MEMORY, softmax
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode, to_numpy
from flowrl.nodes.returns import retrace
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork


class Acer(Algorithm):
    """Learns a policy and action values from sequences of steps, whose probabilities when collecting are a column.

    A collector outputs single steps, and a `sequence_buffer` cuts sequences from them.
    """

    reads = ("obs", "next_obs", "action", "reward", "discount", "last", "valid", "behaviour")
    actions, other_algorithms = "discrete", "ppo or sac"
    unrolls: ClassVar[UnrollRule] = "always"

    class Config(Algorithm.Config):
        model: Any = part(
            "model", "the network of policy and values", shared="model", default=DEFAULT_MODEL
        )
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
        value_weight: float = param(0.5, "weight of the values' error in the loss", ge=0)
        entropy_weight: Scheduled = scheduled(
            0.01, "weight of the policy's entropy in the loss", ge=0
        )
        eval_draws: bool = param(
            False, "evaluations draw actions like collectors; if false, they take the most likely"
        )

    def setup(self) -> None:
        self.distribution = Categorical(self.action)

    def networks(self) -> dict[str, Net]:
        heads = {**self.distribution.heads, "q": LinearHead(self.action_size)}
        seen = {"obs": self.obs}
        net = Net(self.model(), seen, heads, target=self.config.target, masked="logits")
        return {"net": net}

    def acting_heads(self) -> tuple[str, ...]:
        return ("logits",)

    def collect_columns(self) -> Schema:
        behaviour = Column("float32", (self.action_size,), low=0.0, high=1.0)
        return {"action": self.action, "behaviour": behaviour}

    def collect_steps(self) -> Sequence[ActingStep]:
        return [behaviour_probabilities, draw(self.distribution)]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [draw(self.distribution) if self.config.eval_draws else greedy("logits")]

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
            found = retrace(
                ratio_tp1=in_time(ratio.roll(-1, 1)),
                r_t=in_time(b.reward),
                discount_t=in_time(b.discount),
                q_t=in_time(q_t),
                q_tp1=in_time(q_t.roll(-1, 1)),
                v_tp1=in_time(v_tp1),
                cut_t=in_time(b.last),
                lambda_=self.config.retrace_lambda,
            )
            return tensor(found.astype(np.float32)).view(b.reward.shape)

        def unrolled(self, net: Network, b: LearnBatch) -> Any:
            """The heads of all steps, and of the last step's next observation."""
            begins = torch.zeros_like(b.valid[:, :1]).expand(-1, b.valid.shape[1] + 1)
            return net.unroll(b.joined_obs(), b.memory if MEMORY in b else None, begins)

        def mean(self, b: LearnBatch, values: Any) -> Any:
            """The mean of the values of valid steps, scaled by the weights of a prioritised buffer."""
            weighted = values * b.valid * (b.weight.unsqueeze(1) if "weight" in b else 1.0)
            return weighted.sum() / b.valid.sum().clamp(min=1)


def in_time(column: Any) -> Array:
    """A column of sequences (W, T) as one of steps (W T,), in the order of time."""
    return to_numpy(column.flatten())


def behaviour_probabilities(columns: Columns, obs: Array, acting: NetworkActMode) -> None:
    """Give the probabilities of all actions, with which the action is then drawn."""
    columns["behaviour"] = softmax(columns["logits"])
