"""Random expert distillation (Wang et al. 2019): a reward for steps within the support of the expert's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes.algorithm import Net
from flowrl.nodes.imitation import ImitationModel
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.reward_steps import StepBatch, StepColumns

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork

EMBEDDING = "embedding"
AVERAGING = 0.9  # of the expert's mean error, in each gradient step


class Red(ImitationModel):
    """Rewards steps that resemble the expert's: a predictor of random features, trained on the expert's steps alone.

    The reward is exp(-sharpness e / e_expert), where e is the predictor's error, and e_expert its mean over the
    expert's steps.
    """

    reads = ("obs", "action")
    frozen = ("target",)

    class Config(ImitationModel.Config):
        model: Any = part(
            "model",
            "the model of the predictor, and of the random network that it predicts",
            default={"type": "auto", "hidden": [64, 64]},
        )
        features: int = param(64, "outputs of the random network", ge=1)
        sharpness: float = param(
            0.5,
            "how fast the reward falls with the error; at the expert's own, it is exp(-sharpness)",
            gt=0,
        )

    target: Network
    predictor: TrainableNetwork

    @classmethod
    def networks(cls, config: Any, steps: StepColumns) -> dict[str, Net]:
        inputs = {"obs": steps.obs, "action": steps.action}
        net = Net(cls.model_of(config), inputs, {EMBEDDING: LinearHead(config.features)})
        return {"target": net, "predictor": net}

    def begin(self) -> None:
        self.expert_error = 1.0

    def error(self, b: StepBatch) -> Any:
        """The mean squared error of the predictor on each step, (N,)."""
        goal = self.target(obs=b.obs, action=b.action)[EMBEDDING]
        return (self.predictor(obs=b.obs, action=b.action)[EMBEDDING] - goal).square().mean(1)

    def bonus(self, b: StepBatch) -> Any:
        """Equation 4, with sigma_1 chosen by the expert's error as in section 3.2."""
        return (-self.config.sharpness / self.expert_error * self.error(b)).exp()

    def train(self, b: StepBatch) -> dict[str, Any]:
        loss = self.error(b.expert).mean()
        norm = self.predictor.descend(loss, self.lr)
        self.expert_error += (float(loss.detach()) - self.expert_error) * (1 - AVERAGING)
        return {"predictor_loss": loss.detach(), "grad_norm": norm}
