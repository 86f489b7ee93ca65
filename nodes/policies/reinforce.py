"""REINFORCE (Williams 1992): the policy gradient with the returns of whole episodes."""

from __future__ import annotations

from typing import Any

from flowrl.core.batch import Array
from flowrl.core.config import param, part
from flowrl.nodes.actor_critic import DEFAULT_MODEL, ActorCritic, ActorCriticLearnMode
from flowrl.nodes.advantages import RETURN, AdvantagePlace, advantages_param
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.returns import discounted_returns
from flowrl.nodes.schedules import Scheduled, scheduled


class Reinforce(ActorCritic):
    """Makes the actions of episodes with high returns more likely. It needs whole episodes (`episode_collector`)."""

    reads = ("obs", "reward", "last", "offset")
    unrolls = "never"
    value_network, estimates = "", (RETURN,)

    class Config(Algorithm.Config):
        model: Any = part(
            "model", "the network of the policy", shared="model", default=DEFAULT_MODEL
        )
        advantages: AdvantagePlace = advantages_param()
        entropy_weight: Scheduled = scheduled(
            0.01, "weight of the policy's entropy in the loss", ge=0
        )
        eval_draws: bool = param(
            False,
            "evaluations draw actions like collectors; if false, they take the most likely",
            only_acting=True,
        )
        normalise_returns: bool = param(
            True, "normalise the returns of a token to mean 0 and standard deviation 1"
        )
        lr: Scheduled = scheduled(3e-3, "learning rate", ge=0)

    def networks(self) -> dict[str, Net]:
        heads = self.distribution.heads
        masked = "logits" if "logits" in heads else ""
        return {"net": Net(self.model(), {"obs": self.obs}, heads, masked=masked)}

    def estimate(
        self, r_t: Array, discount_t: Array, v_t: Array, v_tp1: Array, cut_t: Array
    ) -> tuple[Array, Array]:
        returns = discounted_returns(r_t, cut_t, self.config.gamma)
        return returns, returns

    class Learn(ActorCriticLearnMode):
        policy: Reinforce

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            returns = self.returns(b)
            weight = self.normalised(returns) if self.config.normalise_returns else returns
            logp, entropy = self.policy.distribution.logp_entropy(self.net(b.obs), b)
            policy_loss = -(logp * self.tensor(weight)).mean()
            entropy = entropy.mean()
            norm = self.net.descend(policy_loss - self.now.entropy_weight * entropy, self.now.lr)
            found = {"policy_loss": policy_loss, "entropy": entropy, "grad_norm": norm}
            return {**found, "return": float(returns.mean())}

        def returns(self, b: LearnBatch) -> Array:
            """The discounted returns of all rows (N,)."""
            if self.policy.collector_estimates:
                return b.array(RETURN)
            return discounted_returns(b.array("reward"), b.array("last"), self.config.gamma)
