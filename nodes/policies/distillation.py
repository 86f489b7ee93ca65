"""Policy distillation (Rusu et al. 2016): the policy imitates how an expert rates all actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.batch import Schema
from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.acting import SCORES, ActingStep, most_likely
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.distributions import Categorical
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.observations import columns_under
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainableNetwork


class Distillation(Algorithm):
    """Approaches the distribution of actions of an expert, whose `scores` the rows have.

    It learns more of each row than `bc`, which knows the expert's best action only.
    """

    reads = ("obs", SCORES)
    actions, other_algorithms = "discrete", "bc"

    class Config(Algorithm.Config):
        model: Any = part("model", "the network of the policy", shared="model", default="auto")
        lr: Scheduled = scheduled(1e-3, "learning rate", gt=0)
        temperature: float = param(
            1.0,
            "the expert's scores are divided by this; take 1 for the logits of a policy, and a small number, such as "
            "0.01, for action values",
            gt=0,
        )

    def setup(self) -> None:
        self.distribution = Categorical(self.action)

    def networks(self) -> dict[str, Net]:
        heads = self.distribution.heads
        return {"net": Net(self.model(), {"obs": self.obs}, heads, masked="logits")}

    def learn_columns(self) -> Schema:
        return {**columns_under("obs", self.obs), **self.score_columns()}

    def collect_steps(self) -> Sequence[ActingStep]:
        return self.eval_steps()

    def eval_steps(self) -> Sequence[ActingStep]:
        return [most_likely(self.distribution)]

    class Learn(NetworkLearnMode):
        net: TrainableNetwork

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            logits, scores = self.net(b.obs)["logits"], getattr(b, SCORES)
            agreed = (logits.argmax(-1) == scores.argmax(-1)).float().mean()
            divergence = losses.distillation_loss(logits, scores, self.config.temperature)
            loss = b.weighted_mean(divergence)
            norm = self.net.descend(loss, self.now.lr)
            return {"loss": loss, "agreement": agreed, "grad_norm": norm}
