"""An algorithm of one's own: REINFORCE with a baseline (Sutton & Barto 2018, section 13.4)."""

from typing import Any

from flowrl import param, part
from flowrl.nodes.acting import draw, most_likely
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.distributions import distribution_of
from flowrl.nodes.models.heads import ScalarHead
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.returns import discounted_returns
from flowrl.nodes.schedules import Scheduled, scheduled


class Baseline(Algorithm):
    """Makes actions more likely whose return is higher than the value that was expected."""

    reads = ("obs", "action", "reward", "last")  # the columns of `b` in `learn`
    actions = "discrete"
    on_policy = True  # `check` warns of rows of older weights
    learns_across_rows = True  # `check` refuses rows that are not in the order of time

    class Config(Algorithm.Config):
        model: Any = part("model", "the network of policy and value", default="auto")
        lr: Scheduled = scheduled(0.003, "learning rate", gt=0)
        value_weight: float = param(0.5, "weight of the value's error in the loss", ge=0)

    def setup(self) -> None:
        self.distribution = distribution_of(self.action)

    def networks(self) -> dict[str, Net]:
        heads = {**self.distribution.heads, "value": ScalarHead()}
        return {"net": Net(self.model(), {"obs": self.obs}, heads)}

    def acting_heads(self) -> tuple[str, ...]:
        return tuple(self.distribution.heads)  # the value is not needed to act

    def collect_steps(self) -> list[Any]:
        return [draw(self.distribution)]

    def eval_steps(self) -> list[Any]:
        return [most_likely(self.distribution)]

    class Learn(NetworkLearnMode):
        policy: "Baseline"
        net: Any

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            gamma, weight = self.config.gamma, self.config.value_weight
            returns = discounted_returns(b.array("reward"), b.array("last"), gamma)
            heads = self.net(b.obs)
            logp, _ = self.policy.distribution.logp_entropy(heads, b)
            target = self.tensor(returns)
            advantage = target - heads["value"].detach()
            value_loss = (heads["value"] - target).square().mean()
            loss = -(logp * advantage).mean() + weight * value_loss
            norm = self.net.descend(loss, self.now.lr)
            return {"loss": loss, "value_loss": value_loss, "grad_norm": norm}
