"""Actions through which the gradients of a critic reach the actor: real-valued ones, or one of n by Gumbel noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.acting import ActingStep, add_noise, draw, greedy, tanh_action
from flowrl.nodes.agent_rewards import AgentRewards
from flowrl.nodes.distributions import Categorical
from flowrl.nodes.lazy import functional
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.multi_agent_losses import gumbel_softmax
from flowrl.nodes.network_learn_mode import LearnBatch, NetworkLearnMode
from flowrl.nodes.schedules import Scheduled, scheduled
from flowrl.nodes.targets import TargetRule, follows

if TYPE_CHECKING:
    from torch import Tensor

LEAST_LOGIT = -100  # in regularisation, because the scores of forbidden actions say nothing


class DifferentiableActions:
    """The actions of one agent, whose actor outputs them before they are squashed, or the scores of n of them.

    The settings `noise` and `temperature` of the policy say how it explores, and how soft discrete samples are.
    """

    def __init__(self, policy: DeterministicActors) -> None:
        action = policy.own_action
        self.is_real, self.size = policy.box is not None, policy.action_size
        if not self.is_real and (action.n is None or action.shape):
            what = f"{policy.name} needs real-valued actions or one of n; an agent takes {action}"
            raise UnsoundError(what, "try mappo", "policy")
        self.head = "action" if self.is_real else "logits"
        self.heads = {self.head: LinearHead(self.size, 0.01)}
        self.masked = "" if self.is_real else self.head  # the head that obeys an action mask
        self._action = action
        self._temperature: float = policy.config.temperature

    def ignored_settings(self) -> Mapping[str, str]:
        """The settings that have no effect with these actions, each with the reason."""
        if self.is_real:
            return {"temperature": "real-valued actions have a gradient without it"}
        return {"noise": "discrete actions are drawn from the actor's distribution"}

    def collect_steps(self) -> Sequence[ActingStep]:
        """The steps of acting that explore."""
        if self.is_real:
            return [tanh_action(self.head), add_noise("noise")]
        return [draw(Categorical(self._action))]

    def eval_steps(self) -> Sequence[ActingStep]:
        """The steps of acting greedily."""
        return [tanh_action(self.head) if self.is_real else greedy(self.head)]

    def taken(self, b: LearnBatch) -> Tensor:
        """The actions of the rows (B, N, n), one-hot or in (-1, 1)."""
        if self.is_real:
            real: Tensor = b.unit_action
            return real
        found: Tensor = functional.one_hot(b.action.long(), self.size).float()
        return found

    def noise(self, mode: NetworkLearnMode, outputs: Tensor) -> Tensor | None:
        """The numbers by which discrete actions are drawn; None for real-valued ones."""
        return None if self.is_real else mode.uniform(*outputs.shape)

    def of(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """The actions (…, n) that follow from the outputs of the actor."""
        if noise is None:
            return outputs.tanh()
        return gumbel_softmax(outputs, noise, self._temperature)

    def squares(self, outputs: Tensor) -> Any:
        """The mean squares (…) of the outputs, for regularisation."""
        found = outputs if self.is_real else outputs.clamp(min=LEAST_LOGIT)
        return found.square().mean(-1)


class DeterministicActors(AgentRewards):
    """A policy whose actors learn by the gradients of a critic, which reach them through their actions."""

    acting_network, squashes = "actor", True

    class Config(AgentRewards.Config):
        target: TargetRule = follows(tau=0.01)
        lr: Scheduled = scheduled(5e-4, "learning rate of the actor", ge=0)
        critic_lr: Scheduled = scheduled(1e-3, "learning rate of the critic", ge=0)
        noise: Scheduled = scheduled(
            0.2,
            "deviation of the noise in real-valued actions when collecting, in half ranges",
            ge=0,
        )
        temperature: float = param(
            1.0, "of the soft samples through which discrete actions get a gradient", gt=0
        )
        regularisation: float = param(
            1e-3, "weight of the mean square of the actor's outputs in its loss", ge=0
        )
        max_grad_norm: float | None = param(
            1.0, "longer gradients are scaled down to this norm; null: none are", gt=0
        )

    choice: DifferentiableActions

    def setup(self) -> None:
        self.choice = DifferentiableActions(self)

    def ignored_settings(self) -> Mapping[str, str]:
        return self.choice.ignored_settings()

    def collect_steps(self) -> Sequence[ActingStep]:
        return self.choice.collect_steps()

    def eval_steps(self) -> Sequence[ActingStep]:
        return self.choice.eval_steps()
