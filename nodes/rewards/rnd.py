"""Random network distillation (Burda et al. 2018): a bonus for new observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes.algorithm import Net
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.reward_model import LearnedRewardModel
from flowrl.nodes.reward_steps import StepBatch, StepColumns
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork

EMBEDDING = "embedding"


class Rnd(LearnedRewardModel):
    """Adds a bonus for the novelty of `next_obs`: a predictor's error on the features of a fixed random network.

    The predictor is trained on the observations that it rates, so its error is small on those that are frequent and
    large on those that are new.
    """

    reads = ("next_obs",)
    frozen = ("target",)

    class Config(LearnedRewardModel.Config):
        weight: Scheduled = scheduled(
            0.01, "factor of the bonus, whose standard deviation is about 1", ge=0
        )
        model: Any = part(
            "model",
            "the model of the predictor, and of the random network that it predicts",
            default={"type": "auto", "hidden": [64, 64]},
        )
        features: int = param(64, "outputs of the random network", ge=1)

    target: Network
    predictor: TrainableNetwork

    @classmethod
    def networks(cls, config: Any, steps: StepColumns) -> dict[str, Net]:
        heads = {EMBEDDING: LinearHead(config.features)}
        net = Net(cls.model_of(config), {"next_obs": steps.next_obs}, heads)
        return {"target": net, "predictor": net}

    def bonus(self, b: StepBatch) -> Any:
        """|f(s_tp1) - g(s_tp1)|^2, the mean over features: section 2.2."""
        goal = self.target(next_obs=b.next_obs)[EMBEDDING]
        return (self.predictor(next_obs=b.next_obs)[EMBEDDING] - goal).square().mean(1)

    def train(self, b: StepBatch) -> dict[str, Any]:
        loss = self.bonus(b).mean()
        return {"predictor_loss": loss.detach(), "grad_norm": self.predictor.descend(loss, self.lr)}
