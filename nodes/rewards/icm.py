"""The intrinsic curiosity module (Pathak et al. 2017): a bonus for steps whose outcome was not foreseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Column
from flowrl.core.config import param, part
from flowrl.nodes.algorithm import Net
from flowrl.nodes.distributions import distribution_of
from flowrl.nodes.models.heads import Heads, LinearHead
from flowrl.nodes.reward_model import LearnedRewardModel
from flowrl.nodes.reward_steps import StepBatch, StepColumns
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import TrainableNetwork

PHI, NEXT_PHI = "phi", "next_phi"  # the features of an observation, and of the next one


class Icm(LearnedRewardModel):
    """Adds a bonus for the error of a forecast of the next observation's features.

    The features are those from which a second network can tell which action was taken, so what the agent cannot
    influence, such as noise, gives no lasting bonus.
    """

    reads = ("obs", "next_obs", "action")

    class Config(LearnedRewardModel.Config):
        weight: Scheduled = scheduled(
            0.01, "factor of the bonus, whose standard deviation is about 1", ge=0
        )
        encoder: Any = part(
            "model",
            "the network of the features of observations",
            default={"type": "auto", "hidden": [64]},
        )
        model: Any = part(
            "model",
            "the networks that tell the action, and that forecast the next features",
            default={"type": "mlp", "hidden": [64]},
        )
        features: int = param(32, "features of an observation", ge=1)
        forward_share: float = param(
            0.2, "share of the forecast's loss; the rest is that of the action's (beta)", ge=0, le=1
        )

    encoder: TrainableNetwork
    inverse: TrainableNetwork
    dynamics: TrainableNetwork

    @classmethod
    def networks(cls, config: Any, steps: StepColumns) -> dict[str, Net]:
        size, model = config.features, cls.model_of(config)
        column = Column("float32", (size,))
        pair = {PHI: column, NEXT_PHI: column}
        encoder = Net(cls.model_of(config, "encoder"), {"obs": steps.obs}, {PHI: LinearHead(size)})
        inverse = Net(model, pair, action_heads(steps.action))
        inputs = {PHI: column, "action": steps.action}
        dynamics = Net(model, inputs, {NEXT_PHI: LinearHead(size)})
        return {"encoder": encoder, "inverse": inverse, "dynamics": dynamics}

    def bonus(self, b: StepBatch) -> Any:
        """1/2 |forecast(phi(s_t), a_t) - phi(s_tp1)|^2: equation 6."""
        return self.forecast_error(b, self.encode(b.obs), self.encode(b.next_obs))

    def train(self, b: StepBatch) -> dict[str, Any]:
        """One step down (1 - beta) L_inverse + beta L_forward of all networks: equation 7."""
        phi_t, phi_tp1 = self.encode(b.obs), self.encode(b.next_obs)
        forward_loss = self.forecast_error(b, phi_t, phi_tp1).mean()
        inverse_loss = self.action_error(b, phi_t, phi_tp1).mean()
        share = self.config.forward_share
        loss = (1 - share) * inverse_loss + share * forward_loss
        norm = self.encoder.descend(loss, self.lr, also=[self.inverse, self.dynamics])
        losses = {"forward_loss": forward_loss.detach(), "inverse_loss": inverse_loss.detach()}
        return {**losses, "grad_norm": norm}

    def encode(self, obs: Any) -> Any:
        """The features phi(s) of observations, (N, F)."""
        return self.encoder(obs)[PHI]

    def forecast_error(self, b: StepBatch, phi_t: Any, phi_tp1: Any) -> Any:
        """1/2 |forecast(phi_t, a_t) - phi_tp1|^2, (N,)."""
        forecast = self.dynamics(phi=phi_t, action=b.action)[NEXT_PHI]
        return 0.5 * (forecast - phi_tp1).square().sum(1)

    def action_error(self, b: StepBatch, phi_t: Any, phi_tp1: Any) -> Any:
        """How far the told action is from the one that was taken, (N,): -log p, or the squared error."""
        heads = self.inverse(phi=phi_t, next_phi=phi_tp1)
        if "action" in heads:
            return (heads["action"] - b.action.flatten(1)).square().mean(1)
        assert self.steps is not None
        return -distribution_of(self.steps.action).logp_entropy(heads, b)[0]


def action_heads(action: Column) -> Heads:
    """The heads of a network that tells actions: logits of discrete ones, and values of real-valued ones."""
    if np.dtype(action.dtype).kind == "f":
        return {"action": LinearHead(int(np.prod(action.shape, dtype=np.int64)))}
    return distribution_of(action).heads
