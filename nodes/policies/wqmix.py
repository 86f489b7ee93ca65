"""Weighted QMIX (Rashid et al. 2020): QMIX towards a central value without limits, with weights of joint actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from flowrl.core.config import param, part
from flowrl.core.facts import UnsoundError
from flowrl.nodes.algorithm import Net
from flowrl.nodes.lazy import torch
from flowrl.nodes.losses import chosen
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.qmix import Qmix

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import Network, TrainableNetwork


class Wqmix(Qmix):
    """Learns Q*(s, a) without limits, and Q_tot near it, above all where Q_tot is too low or the actions are best."""

    class Config(Qmix.Config):
        weighting: Literal["optimistic", "central"] = param(
            "optimistic",
            "full weight of steps whose value is too low (OW-QMIX); `central`: of steps with the best actions, and of "
            "those whose target is above the value of these (CW-QMIX)",
        )
        alpha: float = param(0.5, "weight of the other steps", ge=0, le=1)
        central_model: Any = part(
            "model", "the network of each agent's values below Q*, without memory", default="auto"
        )
        central_mixer: Any = part(
            "model",
            "the network from these values and the state to Q*",
            default={"type": "mlp", "hidden": [256, 256, 256]},
        )

    def mixing_networks(self) -> dict[str, Net]:
        return {
            **super().mixing_networks(),
            "central": self.value_net(self.model("central_model")),
            "central_mixer": self.mixing_net(self.model("central_mixer")),
        }

    def setup(self) -> None:
        super().setup()
        if getattr(self.model("central_mixer").config, "normalise_obs", False):
            what = "the inputs of the central mixer are values, which change with what is learned"
            raise UnsoundError(what, "leave out `normalise_obs`", "central_mixer")

    class Learn(Qmix.Learn):
        """Moves Q* and, with weights, Q_tot towards r_t + discount_t Q*(s_tp1, argmax Q_tot(s_tp1, ·))."""

        central: TrainableNetwork
        central_target: Network
        central_mixer: TrainableNetwork
        central_mixer_target: Network

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            heads, q_tp1 = self.values(self.q, b)
            target = self.targets(b, q_tp1)
            total = self.mix(heads["q"], b.action, b.obs, target=False)
            central = self.central_value(b.obs, b.action, target=False)
            with torch.no_grad():
                weight = self.weights_of(b, heads["q"], total, target)
            loss = self.mean_loss(b, weight * self.error_loss(total, target))
            central_loss = self.mean_loss(b, self.error_loss(central, target))
            norm = self.q.descend(loss + central_loss, self.now.lr, self.mixers())
            found = {"loss": loss, "central_loss": central_loss, "weight": weight.mean()}
            return {**found, "grad_norm": norm, **self.found(total, target)}

        def targets(self, b: LearnBatch, q_tp1: Tensor) -> Tensor:
            with torch.no_grad():
                chooser = q_tp1 if self.config.double else self.values(self.q_target, b)[1]
                v_tp1 = self.central_value(b.next_obs, chooser.argmax(-1), target=True)
            return self.bootstrapped(b, v_tp1)

        def central_value(self, obs: Mapping[str, Tensor], action: Tensor, target: bool) -> Tensor:
            """Q*(s, a) of the actions (…, N)."""
            mixer = self.central_mixer_target if target else self.central_mixer
            each = (self.central_target if target else self.central)(self.own(obs))["q"]
            values = chosen(each, action) * self.alive(obs)
            total: Tensor = mixer(values=values, state=self.state_of(obs))["total"]
            return total

        def weights_of(self, b: LearnBatch, q: Tensor, total: Tensor, target: Tensor) -> Tensor:
            """1 or alpha for each step: Rashid et al. 2020, equations 7 (central) and 8 (optimistic)."""
            if self.config.weighting == "optimistic":
                full = total < target
            else:
                best = q.argmax(-1)
                is_best = ((b.action == best) | (self.alive(b.obs) == 0)).all(-1)
                full = is_best | (target > self.central_value(b.obs, best, target=False))
            return torch.where(full, 1.0, self.config.alpha)
