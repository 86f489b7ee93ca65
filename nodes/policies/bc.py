"""Behavioural cloning (Pomerleau 1991): the policy imitates the actions of demonstrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes.acting import ActingStep, most_likely, tanh_action
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.distributions import distribution_of
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainableNetwork


class Bc(Algorithm):
    """Makes the actions of the rows more likely, or approaches them if they are real-valued."""

    reads = ("obs", "action")
    squashes = True

    class Config(Algorithm.Config):
        model: Any = part("model", "the network of the policy", shared="model", default="auto")
        lr: Scheduled = scheduled(1e-3, "learning rate", gt=0)
        entropy_weight: float = param(
            0.0, "weight of the entropy in the loss, for choices of actions", ge=0
        )

    def setup(self) -> None:
        self.distribution = None if self.box else distribution_of(self.action)

    def ignored_settings(self) -> Mapping[str, str]:
        if self.distribution is not None:
            return {}
        return {
            "entropy_weight": "bc approaches real-valued actions, and has no distribution of them"
        }

    def networks(self) -> dict[str, Net]:
        if self.distribution is None:
            heads: Any = {"action": LinearHead(self.action_size, 0.01)}
            return {"net": Net(self.model(), {"obs": self.obs}, heads)}
        heads = self.distribution.heads
        return {"net": Net(self.model(), {"obs": self.obs}, heads, masked="logits")}

    def collect_steps(self) -> Sequence[ActingStep]:
        return self.eval_steps()

    def eval_steps(self) -> Sequence[ActingStep]:
        if self.distribution is None:
            return [tanh_action("action")]
        return [most_likely(self.distribution)]

    class Learn(NetworkLearnMode):
        net: TrainableNetwork
        policy: Bc

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            heads, distribution = self.net(b.obs), self.policy.distribution
            if distribution is None:
                error = (heads["action"].tanh() - b.unit_action).square().mean(1)
                loss = b.weighted_mean(error)
                return {"loss": loss, "grad_norm": self.net.descend(loss, self.now.lr)}
            logp, entropy = distribution.logp_entropy(heads, b)
            loss = b.weighted_mean(-logp) - self.config.entropy_weight * entropy.mean()
            norm = self.net.descend(loss, self.now.lr)
            return {"loss": loss, "likelihood": logp.exp().mean(), "grad_norm": norm}
