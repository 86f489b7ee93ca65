"""The base of algorithms of several agents whose critics see the state of the env, and whose actors do not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.core.config import part
from flowrl.nodes.agent_rewards import AgentRewards, AgentRewardsLearnMode
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.multi_agent import STATE
from flowrl.nodes.multi_agent_losses import with_own_action
from flowrl.nodes.network_learn_mode import LearnBatch

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import Network, TrainableNetwork

JOINT = "actions"  # what all agents do, as critics see it
DEFAULT_MODEL = {"type": "auto", "hidden": [128, 128]}


class CentralCritic(AgentRewards):
    """A policy of several agents with a critic of what all of them observe.

    The critic has one value, that of the team, or one for each agent if agents learn from their own rewards.
    """

    @property
    def value_count(self) -> int:
        """The number of values: 1 of the team, or one of each agent."""
        return self.agents.count if self.config.rewards == "own" else 1

    def value_head(self) -> LinearHead:
        """The head with these values."""
        return LinearHead(self.value_count)


class CentralCriticLearnMode(AgentRewardsLearnMode):
    """Has an axis of values: one of the team, or N of the agents."""

    policy: CentralCritic

    def discounts(self, b: LearnBatch) -> Array:
        """The factors (…, V) of the next values. In its own rewards, an agent that leaves its episode has none."""
        if self.has_own_rewards:
            return super().discounts(b)
        return np.ascontiguousarray(b.array("discount")[..., None], np.float32)

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
    """Has the values of what all agents do."""

    actor: TrainableNetwork
    critic_target: Network

    def joint(self, actions: Tensor, obs: Mapping[str, Any]) -> Tensor:
        """Actions (B, N, n) as critics see them (B, N n): zeros where an agent is absent."""
        return (actions * self.alive(obs).unsqueeze(-1)).flatten(-2)

    def value(self, critic: Network, state: Tensor, joint: Tensor) -> Tensor:
        """The values (…, V) of joint actions in states."""
        found: Tensor = critic(state=state, actions=joint)["value"]
        return found

    def value_of_own_action(self, b: LearnBatch, others: Tensor, own: Tensor) -> Tensor:
        """For each agent (B, N) its value where it acts by `own` (B, N, n), and the others by `others`."""
        acts = self.alive(b.obs).unsqueeze(-1)
        joint = with_own_action(others * acts, own * acts).flatten(-2)
        state = self.state_of(b.obs).unsqueeze(-2).expand(*joint.shape[:-1], -1)
        q = self.value(self.critic, state, joint)  # (B, N, V)
        found: Tensor = q.diagonal(dim1=-2, dim2=-1) if self.has_own_rewards else q.squeeze(-1)
        return found
