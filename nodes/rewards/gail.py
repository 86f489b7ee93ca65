"""Generative adversarial imitation learning (Ho & Ermon 2016): a reward for acting like the expert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from flowrl.core.config import param, part
from flowrl.nodes import losses
from flowrl.nodes.algorithm import Net
from flowrl.nodes.imitation import ImitationModel
from flowrl.nodes.models.heads import ScalarHead
from flowrl.nodes.reward_steps import StepBatch, StepColumns

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainableNetwork


class Gail(ImitationModel):
    """Rewards steps that a discriminator D takes for the expert's. D learns to tell the agent's from the expert's."""

    reads = ("obs", "action")

    class Config(ImitationModel.Config):
        model: Any = part(
            "model",
            "the network of the discriminator",
            default={"type": "auto", "hidden": [64, 64], "activation": "tanh"},
        )
        form: Literal["positive", "negative", "signed"] = param(
            "positive",
            "the reward: positive: -log(1 - D), for tasks in which the expert lives long; negative: log D, for tasks "
            "in which it soon reaches a goal; signed: the sum of both",
        )

    discriminator: TrainableNetwork

    @classmethod
    def networks(cls, config: Any, steps: StepColumns) -> dict[str, Net]:
        inputs = {"obs": steps.obs, "action": steps.action}
        return {"discriminator": Net(cls.model_of(config), inputs, {"logit": ScalarHead(0.01)})}

    def logit(self, b: StepBatch) -> Any:
        """log D / (1 - D) of each step, where D is the probability that it is the expert's."""
        return self.discriminator(obs=b.obs, action=b.action)["logit"]

    def bonus(self, b: StepBatch) -> Any:
        return losses.imitation_reward(self.config.form, self.logit(b))

    def train(self, b: StepBatch) -> dict[str, Any]:
        """One step up E_expert log D + E_agent log(1 - D): algorithm 1, equation 17."""
        agent, expert = self.logit(b), self.logit(b.expert)
        loss = losses.discriminator_loss(agent, expert)
        norm = self.discriminator.descend(loss, self.lr)
        shares = {
            "agent_share": (agent < 0).float().mean(),
            "expert_share": (expert > 0).float().mean(),
        }
        return {"discriminator_loss": loss.detach(), "grad_norm": norm, **shares}
