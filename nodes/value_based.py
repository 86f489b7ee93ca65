"""The base of algorithms that learn the values of a few actions and take the best one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from flowrl.core.config import param, part
from flowrl.nodes.acting import ActingStep, epsilon_greedy, greedy, obey_mask
from flowrl.nodes.algorithm import Algorithm, Net
from flowrl.nodes.models.action_mask import mask_tensor
from flowrl.nodes.models.features import ACTION_MASK
from flowrl.nodes.models.heads import Head, action_values
from flowrl.nodes.network_learn_mode import NetworkLearnMode
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from flowrl.nodes.models.networks import Network, TrainableNetwork


class ValueBased(Algorithm):
    """An algorithm with a network `q` of the values of actions, and a target network that follows it."""

    actions, other_algorithms = "discrete", "ppo, sac or td3"
    acting_network = "q"
    # If true, the network masks its head. If not, scores are masked after the head was turned into them.
    masks_head: ClassVar[bool] = True

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
        masked = "q" if self.masks_head else ""
        net = Net(self.model(), {"obs": self.obs}, heads, target=self.config.target, masked=masked)
        return {"q": net}

    def score_steps(self) -> Sequence[ActingStep]:
        """The steps from the head to one score for each action."""
        return ()

    def collect_steps(self) -> Sequence[ActingStep]:
        return [*self._masked_scores(), epsilon_greedy("q")]

    def eval_steps(self) -> Sequence[ActingStep]:
        return [*self._masked_scores(), greedy("q")]

    def _masked_scores(self) -> Sequence[ActingStep]:
        masks = [obey_mask("q")] if self.masks and not self.masks_head else []
        return [*self.score_steps(), *masks]


class ValueBasedLearnMode(NetworkLearnMode):
    """Has the network `q` and its target."""

    q: TrainableNetwork
    q_target: Network
    policy: ValueBased

    def best_actions(self, scores: Any, obs: Any) -> Any:
        """The actions (B,) with the highest scores (B, n) among those that the observed mask allows."""
        if self.policy.masks and not self.policy.masks_head:
            scores = mask_tensor(scores, obs[ACTION_MASK])
        return scores.argmax(-1)
