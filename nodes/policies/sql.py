"""Soft Q-learning (Haarnoja et al. 2017) with a few actions: values include the entropy of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.acting import ActingStep, softmax_draw
from flowrl.nodes.algorithm import Algorithm
from flowrl.nodes.lazy import torch
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows
from flowrl.nodes.value_based import ValueBased, ValueBasedLearnMode


class Sql(ValueBased):
    """Learns soft action values, and acts by drawing from softmax(Q / alpha)."""

    class Config(Algorithm.Config):
        model: Any = part("model", "the network of Q(s, ·)", shared="model", default="auto")
        nstep: int = param(1, "rewards that are summed before the target bootstraps", ge=1)
        dueling: bool = param(True, "Q as the state's value plus each action's advantage")
        loss: Literal["huber", "mse"] = param("huber", "loss of the temporal-difference error")
        alpha: Scheduled = scheduled(0.05, "temperature: the weight of the entropy", gt=0)
        lr: Scheduled = scheduled(1e-3, "learning rate", gt=0)
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        target: TargetRule = follows("how the target network follows", every_iters=100)

    def collect_steps(self) -> Sequence[ActingStep]:
        return [softmax_draw("q", "alpha")]

    class Learn(ValueBasedLearnMode):
        """Moves Q(s_t, a_t) towards r_t + discount_t * alpha log sum_a exp(Q_target(s_tp1, a) / alpha)."""

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            alpha = self.now.alpha
            with torch.no_grad():
                v_tp1 = losses.soft_value(self.q_target(b.next_obs)["q"], alpha)
                target_t = b.reward + b.discount * v_tp1
            values = self.q(b.obs)["q"]
            q_t = losses.chosen(values, b.action)
            loss = b.weighted_mean(losses.error_loss(self.config.loss, q_t, target_t))
            norm = self.q.descend(loss, self.now.lr)
            with torch.no_grad():
                logp = (values / alpha).log_softmax(-1)
                entropy = -(logp.exp() * logp).sum(-1).mean()
                priority = (target_t - q_t).abs()
            found = {"loss": loss, "q": q_t.mean(), "entropy": entropy, "grad_norm": norm}
            return {**found, "priority": priority}
