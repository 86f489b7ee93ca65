"""The base of algorithms whose agents learn values, from the reward of the team or each from its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import param
from flowrl.nodes.multi_agent import ALIVE, MultiAgent, MultiAgentLearnMode
from flowrl.nodes.network_learn_mode import LearnBatch

if TYPE_CHECKING:
    from torch import Tensor

    from flowrl.nodes.models.networks import TrainableNetwork

OWN_REWARDS = "info/rewards"  # the column (N,) with each agent's reward


class AgentRewards(MultiAgent):
    """A policy of several agents with a critic."""

    class Config(MultiAgent.Config):
        rewards: Literal["team", "own"] = param(
            "team",
            "what agents learn from: the reward of the team, or each from its own, which the env gives as "
            "`info: [rewards]`",
        )

    def learn_columns(self) -> Schema:
        columns = super().learn_columns()
        if self.config.rewards == "team":
            return columns
        columns = {name: column for name, column in columns.items() if name != "reward"}
        return {**columns, **self.in_rows({OWN_REWARDS: self.agents.each(Column("float32"))})}


class AgentRewardsLearnMode(MultiAgentLearnMode):
    """Has rewards, and says which values count, with an axis of values: one of each agent, if nothing else is said."""

    critic: TrainableNetwork
    policy: AgentRewards

    @property
    def has_own_rewards(self) -> bool:
        """Whether agents learn from their own rewards."""
        return bool(self.config.rewards == "own")

    def rewards(self, b: LearnBatch) -> Array:
        """The rewards (…, V), or (…, 1) where all values have the same one."""
        if self.has_own_rewards:
            return b.array(OWN_REWARDS)
        return b.array("reward")[..., None]

    def discounts(self, b: LearnBatch) -> Array:
        """The factors (…, V) of the next values. An agent that leaves its episode has none."""
        stays = b.array(f"next_obs/{ALIVE}") != 0
        return np.ascontiguousarray(b.array("discount")[..., None] * stays, np.float32)

    def counted(self, b: LearnBatch) -> Tensor:
        """1 for each value (…, V) that is learned, and 0 for those of agents that do not act."""
        alive: Tensor = self.alive(b.obs)
        return alive

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
