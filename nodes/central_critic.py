"""The base of algorithms of several agents whose critics see the state of the env, and whose actors do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import param
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.multi_agent import ALIVE, MultiAgent, MultiAgentLearnMode
from flowrl.nodes.network_learn_mode import LearnBatch

if TYPE_CHECKING:
    from torch import Tensor

OWN_REWARDS = "info/rewards"  # the column (N,) with each agent's reward
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
