"""A reward model with a network, trained on the rows that it rates."""

from typing import Any

from flowrl import part
from flowrl.nodes.algorithm import Net
from flowrl.nodes.models.heads import ScalarHead
from flowrl.nodes.reward_model import LearnedRewardModel
from flowrl.nodes.reward_steps import StepBatch, StepColumns


class Surprise(LearnedRewardModel):
    """Adds a bonus for the error of a forecast of the reward."""

    reads = ("obs", "action", "reward")  # the columns of `b`

    class Config(LearnedRewardModel.Config):
        model: Any = part("model", "the network of the forecast", default="auto")

    @classmethod
    def networks(cls, config: Any, steps: StepColumns) -> dict[str, Net]:
        inputs = {"obs": steps.obs, "action": steps.action}
        return {"forecast": Net(cls.model_of(config), inputs, {"reward": ScalarHead()})}

    def bonus(self, b: StepBatch) -> Any:  # of each step, (N,)
        return (self.forecast(obs=b.obs, action=b.action)["reward"] - b.reward).square()

    def train(self, b: StepBatch) -> dict[str, Any]:  # on a minibatch
        loss = self.bonus(b).mean()
        return {"loss": loss.detach(), "grad_norm": self.forecast.descend(loss, self.lr)}
