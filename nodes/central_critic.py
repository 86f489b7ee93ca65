"""The base of algorithms of several agents whose critics see the state of the env, and whose actors do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import param, part
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.multi_agent import ALIVE, STATE, MultiAgent, MultiAgentLearnMode
from flowrl.nodes.multi_agent_losses import with_own_action
from flowrl.nodes.network_learn_mode import LearnBatch

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import Network, TrainableNetwork

OWN_REWARDS = "info/rewards"  # the column (N,) with each agent's reward
JOINT = "actions"  # what all agents do, as critics see it
DEFAULT_MODEL = {"type": "auto", "hidden": [128, 128]}


class CentralCritic(MultiAgent):
    """A policy of several agents with a critic of what all of them observe.

    The critic has one value, that of the team, or one for each agent if agents learn from their own rewards.
    """

    class Config(MultiAgent.Config):
        rewards: Literal["team", "own"] = param(
            "team",
            "what agents learn from: the reward of the team, or each from its own, which the env gives as "
            "`info: [rewards]`",
        )

    @property
    def value_count(self) -> int:
        """The number of values: 1 of the team, or one of each agent."""
        return self.agents.count if self.config.rewards == "own" else 1

    def value_head(self) -> LinearHead:
        """The head with these values."""
        return LinearHead(self.value_count)

    def learn_columns(self) -> Schema:
        columns = super().learn_columns()
        if self.config.rewards == "team":
            return columns
        return {**columns, **self.in_rows({OWN_REWARDS: self.agents.each(Column("float32"))})}


class CentralCriticLearnMode(MultiAgentLearnMode):
    """Has rewards, and says which values count, with an axis of values: one of the team, or N of the agents."""

    policy: CentralCritic

    @property
    def has_own_rewards(self) -> bool:
        """Whether agents learn from their own rewards."""
        return bool(self.config.rewards == "own")

    def rewards(self, b: LearnBatch) -> Array:
        """The rewards (…, V)."""
        if self.has_own_rewards:
            return b.array(OWN_REWARDS)
        return b.array("reward")[..., None]

    def discounts(self, b: LearnBatch) -> Array:
        """The factors (…, V) of the next values. An agent that leaves its episode has none."""
        discount: Array = b.array("discount")[..., None]
        if self.has_own_rewards:
            discount = discount * (b.array(f"next_obs/{ALIVE}") != 0)
        return np.ascontiguousarray(discount, np.float32)

    def counted(self, b: LearnBatch) -> Tensor:
        """1 for each value (…, V) that is learned, and 0 for those of agents that do not act."""
        alive: Tensor = self.alive(b.obs)
        return alive if self.has_own_rewards else alive.new_ones((*alive.shape[:-1], 1))


class JointCritic(CentralCritic):
    """A policy of several agents that learn from replayed steps, with a critic that also sees what all of them do."""

    acting_network, squashes = "actor", True

    class Config(CentralCritic.Config):
        actor: Any = part(
            "model", "the network of the policy", shared="model", default=DEFAULT_MODEL
        )
        critic: Any = part(
            "model",
            "the network of Q(s, what all agents do)",
            shared="model",
            default=DEFAULT_MODEL,
        )

    @property
    def critic_inputs(self) -> dict[str, Column]:
        """The state of the env, and the actions of all agents in one row."""
        joint = Column("float32", (self.agents.count * self.action_size,))
        return {STATE: self.agents.state, JOINT: joint}


class JointCriticLearnMode(CentralCriticLearnMode):
    """Has the values of what all agents do, and the step of the critic."""

    actor: TrainableNetwork
    critic: TrainableNetwork
    critic_target: Network

    def joint(self, actions: Tensor, obs: Mapping[str, Any]) -> Tensor:
        """Actions (B, N, n) as critics see them (B, N n): zeros where an agent is absent."""
        return (actions * self.alive(obs).unsqueeze(-1)).flatten(-2)

    def value(self, critic: Network, state: Tensor, joint: Tensor) -> Tensor:
        """The values (…, V) of joint actions in states."""
        found: Tensor = critic(state=state, actions=joint)["value"]
        return found

    def learn_critic(self, b: LearnBatch, q_t: Tensor, target_t: Tensor) -> dict[str, Any]:
        """One step for the critics (B, critics, V) down their squared distances from the targets (B, V)."""
        counted = self.counted(b)
        errors = (q_t - target_t.unsqueeze(1)).square().sum(1) * counted
        if "weight" in b:
            errors = errors * b.weight.unsqueeze(-1)
        loss = self.mean_where(counted, errors)
        norm = self.critic.descend(loss, self.now.critic_lr)
        mean_t = q_t.detach().mean(1)
        priority = ((target_t - mean_t).abs() * counted).mean(-1)
        q = self.mean_where(counted, mean_t * counted)
        return {"critic_loss": loss, "q": q, "grad_norm": norm, "priority": priority}

    def value_of_own_action(self, b: LearnBatch, others: Tensor, own: Tensor) -> Tensor:
        """For each agent (B, N) its value where it acts by `own` (B, N, n), and the others by `others`."""
        acts = self.alive(b.obs).unsqueeze(-1)
        joint = with_own_action(others * acts, own * acts).flatten(-2)
        state = self.state_of(b.obs).unsqueeze(-2).expand(*joint.shape[:-1], -1)
        q = self.value(self.critic, state, joint)  # (B, N, V)
        found: Tensor = q.diagonal(dim1=-2, dim2=-1) if self.has_own_rewards else q.squeeze(-1)
        return found
