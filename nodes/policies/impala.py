"""IMPALA (Espeholt et al. 2018): an actor-critic whose V-trace corrects for data of older weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param
from flowrl.nodes.actor_critic import ActorCritic, ActorCriticLearnMode
from flowrl.nodes.advantages import AdvantagePlace, advantages_param
from flowrl.nodes.devices import to_numpy
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.returns import vtrace
from flowrl.nodes.schedules import Scheduled, scheduled


class Impala(ActorCritic):
    """Learns from ordered rows of slightly older weights, so that collecting and learning can overlap."""

    on_policy = False

    class Config(ActorCritic.Config):
        rho_limit: float = param(1.0, "limit of the ratios that weight errors (rho bar)", gt=0)
        c_limit: float = param(1.0, "limit of the ratios that weight later errors (c bar)", gt=0)
        gae_lambda: float = param(1.0, "factor of these ratios", ge=0, le=1)
        advantages: AdvantagePlace = advantages_param()
        lr: Scheduled = scheduled(6e-4, "learning rate", ge=0)
        max_grad_norm: float | None = param(
            0.5, "longer gradients are scaled down to this norm; null: none are", gt=0
        )

    @property
    def needs_newest_weights(self) -> str:
        if not self.collector_estimates:
            return ""
        return "V-trace on the collecting side does not know by how much the learner's weights are newer"

    def estimate(
        self, r_t: Array, discount_t: Array, v_t: Array, v_tp1: Array, cut_t: Array
    ) -> tuple[Array, Array]:
        ones = np.ones(len(r_t), np.float32)
        target, advantage = self.vtrace(ones, r_t, discount_t, v_t, v_tp1, cut_t)
        return advantage, target

    def vtrace(self, ratio_t: Array, *columns: Array) -> tuple[Array, Array]:
        """The targets of values and the advantages of rows (N,), given the ratios of their actions' likelihoods."""
        c = self.config
        limits = {"rho_limit": c.rho_limit, "c_limit": c.c_limit}
        return vtrace(ratio_t, *columns, **limits, lambda_=c.gae_lambda)

    class Learn(ActorCriticLearnMode):
        policy: Impala

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c = self.config
            heads = self.heads(b)
            logp, entropy = self.policy.distribution.logp_entropy(heads, b)
            log_ratio = logp.detach() - b.logp
            target, advantage = self.corrected(b, log_ratio)
            policy_loss = -(logp * advantage).mean()
            value_loss = (heads["value"] - target).square().mean()
            entropy = entropy.mean()
            loss = policy_loss + c.value_weight * value_loss - self.now.entropy_weight * entropy
            norm = self.net.descend(loss, self.now.lr)
            return {
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "entropy": entropy,
                "ratio": log_ratio.exp().mean(),
                "grad_norm": norm,
            }

        def corrected(self, b: LearnBatch, log_ratio: Any) -> tuple[Any, Any]:
            """The targets of the value head and the advantages, shaped as `b.reward`."""
            if self.policy.collector_estimates:
                advantage, target = self.advantages(b)
                return target, advantage
            reward, discount = (b.array(name).reshape(-1) for name in ("reward", "discount"))
            ratio = np.exp(to_numpy(log_ratio.flatten()))
            found = self.policy.vtrace(ratio, reward, discount, *self.values(b))
            shape = b.array("reward").shape
            target, advantage = (self.tensor(x.reshape(shape)) for x in found)
            return target, advantage
