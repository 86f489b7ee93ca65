"""PPO (Schulman et al. 2017) with generalised advantages, for discrete and continuous actions."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.config import param, part
from flowrl.nodes.actor_critic import ActorCritic, ActorCriticLearnMode
from flowrl.nodes.advantages import (
    ADVANTAGE,
    RETURN,
    RETURN_MEAN,
    RETURN_STD,
    VALUE,
    AdvantagePlace,
    advantages_param,
)
from flowrl.nodes.lazy import torch
from flowrl.nodes.losses import clipped_policy_loss, clipped_value_loss
from flowrl.nodes.models.numpy_model import MEMORY
from flowrl.nodes.moments import Moments
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.schedules import Scheduled, scheduled

METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clipped", "grad_norm")


class Ppo(ActorCritic):
    """Improves the policy on its own data; clipping the likelihood ratio keeps the steps small."""

    estimates = (ADVANTAGE, RETURN, VALUE)

    class Config(ActorCritic.Config):
        gae_lambda: float = param(
            0.95, "1: advantages sum all rewards; 0: they rely on the next value", ge=0, le=1
        )
        advantages: AdvantagePlace = advantages_param()
        epochs: int = param(4, "times that each row is learned from", ge=1)
        minibatch_size: int = param(256, "rows of one gradient step", ge=1)
        clip: Scheduled = scheduled(
            0.2, "likelihood ratios are clipped to this distance from 1", gt=0
        )
        dual_clip: float | None = param(
            None, "bound of the ratio where the advantage is negative (Ye et al. 2020)", gt=1
        )
        value_clip: float | None = param(
            None, "values are clipped to this distance from the old value; null: they are not", gt=0
        )
        normalise_advantages: bool = param(
            True, "normalise the advantages of a token to mean 0 and standard deviation 1"
        )
        normalise_values: bool = param(False, "the value head predicts normalised returns")
        lr: Scheduled = scheduled(3e-4, "learning rate", ge=0)
        optimiser: Any = part(
            "optimiser", "the optimiser of all networks", default={"type": "adam", "eps": 1e-5}
        )
        max_grad_norm: float | None = param(
            0.5, "longer gradients are scaled down to this norm; null: none are", gt=0
        )

    class Learn(ActorCriticLearnMode):
        """Computes the advantages of a token's rows, and learns from the rows in several epochs."""

        def begin(self) -> None:
            self.returns = Moments()  # stays empty unless `normalise_values`

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            c, metrics = self.config, []
            advantage, target, old_value = self.targets(b)
            b.add(advantage=advantage, target=target, old_value=old_value)
            names = [
                "obs",
                self.policy.distribution.drawn,
                "logp",
                "advantage",
                "target",
                "old_value",
            ]
            if c.unroll_steps:
                names += ["last", *([MEMORY] if MEMORY in b else [])]
            rows = max(1, c.minibatch_size // (c.unroll_steps or 1))
            for _ in range(c.epochs):
                order = self.rng.permutation(b.rows_of_group)
                metrics += [self.descend_minibatch(m) for m in b.minibatches(names, order, rows)]
            means = torch.stack(metrics).mean(0)
            return {**dict(zip(METRICS, means, strict=True)), "lr": self.now.lr}

        def targets(self, b: LearnBatch) -> tuple[Any, Any, Any]:
            """The advantages, and the targets and old values of the value head, shaped as `b.reward`."""
            advantage, target, scaled_t = self.flat_estimates(b)
            mean, std = self.return_moments()
            if self.config.normalise_values:
                self.returns.update(self.of_group(target))
                mean, std = self.return_moments()
            if self.config.normalise_advantages:
                advantage = self.normalised(advantage)
            shape = b.array("logp").shape
            advantage_t, target_t, old_t = (
                self.tensor(x.reshape(shape))
                for x in (advantage, (target - mean) / std, (scaled_t - mean) / std)
            )
            return advantage_t, target_t, old_t

        def flat_estimates(self, b: LearnBatch) -> tuple[Array, Array, Array]:
            """The advantages, returns and values of all steps (N,), on the scale of returns."""
            if self.policy.collector_estimates:
                advantage, target, value = (b.array(n).reshape(-1) for n in self.policy.estimates)
                return advantage, target, value
            v_t, v_tp1, cut_t = self.values(b)
            mean, std = self.return_moments()
            scaled_t, scaled_tp1 = v_t * std + mean, v_tp1 * std + mean
            reward, discount = (b.array(name).reshape(-1) for name in ("reward", "discount"))
            found = self.policy.estimate(reward, discount, scaled_t, scaled_tp1, cut_t)
            return *found, scaled_t

        def value_weights(self) -> dict[str, Array]:
            moments = zip((RETURN_MEAN, RETURN_STD), self.return_moments(), strict=True)
            return {**super().value_weights(), **{n: np.array(x) for n, x in moments}}

        def return_moments(self) -> tuple[np.float32, np.float32]:
            """The mean and standard deviation by which returns are normalised for the value head."""
            return np.float32(self.returns.mean), np.float32(self.returns.std)

        def descend_minibatch(self, b: LearnBatch) -> Any:
            """Do one gradient step on a minibatch; return the metrics."""
            c, now, heads = self.config, self.now, self.heads(b)
            logp, entropy = self.policy.distribution.logp_entropy(heads, b)
            log_ratio = logp - b.logp
            ratio = log_ratio.exp()
            policy_loss = clipped_policy_loss(ratio, b.advantage, now.clip, c.dual_clip).mean()
            value_loss = clipped_value_loss(
                heads["value"], b.target, b.old_value, c.value_clip
            ).mean()
            entropy = entropy.mean()
            loss = policy_loss + c.value_weight * value_loss - now.entropy_weight * entropy
            norm = self.step(loss)
            with torch.no_grad():
                kl = (ratio - 1 - log_ratio).mean()  # estimator k3 of Schulman 2020
                clipped = ((ratio - 1).abs() > now.clip).float().mean()
                return torch.stack([policy_loss, value_loss, entropy, kl, clipped, norm])

        def step(self, loss: Any) -> Any:
            """Do one gradient step; return the norm of the gradient."""
            return self.net.descend(loss, self.now.lr)
