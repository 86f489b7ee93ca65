"""The base of algorithms that learn the values of a few actions and take the best one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.config import param, part
from flowrl.nodes.acting import ActingStep, epsilon_greedy, greedy
from flowrl.nodes.algorithm import Algorithm, Net, TargetRule, follows
from flowrl.nodes.models.heads import Head, action_values
from flowrl.nodes.network_learn_mode import NetworkLearnMode
from flowrl.nodes.schedules import Scheduled, scheduled

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork


class ValueBased(Algorithm):
    """An algorithm with a network `q` of the values of actions, and a target network that follows it."""

    actions, other_algorithms = "discrete", "ppo, sac or td3"
    acting_network = "q"

    class Config(Algorithm.Config):
        model: Any = part("model", "the network of Q(s, ·)", shared="model", default="auto")
        nstep: int = param(1, "rewards that are summed before the target bootstraps", ge=1)
        dueling: bool = param(True, "Q as the state's value plus each action's advantage")
        lr: Scheduled = scheduled(1e-3, "learning rate", gt=0)
        max_grad_norm: float | None = param(
            10.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )
        target: TargetRule = follows("how the target network follows", every_iters=100)
        epsilon: Scheduled = scheduled(
            {"start": 0.95, "end": 0.1, "env_steps": 10_000, "shape": "exponential"},
            "share of random actions when collecting",
            ge=0,
            le=1,
        )

    def head(self) -> Head:
        """The head of the values of actions."""
        return action_values(self.action_size, self.config.dueling)

    def networks(self) -> dict[str, Net]:
        heads = {"q": self.head()}
        net = Net(self.model(), {"obs": self.obs}, heads, target=self.config.target, masked="q")
        return {"q": net}

    def score_steps(self) -> Sequence[ActingStep]:
        """The steps from the head to one score for each action."""
        return ()

    def collect_steps(self) -> Sequence[ActingStep]:
        return [*self.score_steps(), epsilon_greedy("q")]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [*self.score_steps(), greedy("q")]


class ValueBasedLearnMode(NetworkLearnMode):
    """Has the network `q` and its target."""

    q: TrainableNetwork
    q_target: Network
