"""TD3+BC (Fujimoto & Gu 2021): TD3 on a dataset, whose actor also stays near the actions of the data."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.td3 import Td3


class Td3bc(Td3):
    """Learns a deterministic policy from a fixed set of steps."""

    class Config(Td3.Config):
        alpha: float = param(
            2.5, "weight of the value beside the distance from the data's actions", gt=0
        )

    class Learn(Td3.Learn):
        def actor_loss(self, b: LearnBatch) -> Any:
            """-lambda Q(s, pi(s)) + (pi(s) - a)^2 with lambda = alpha / mean |Q|: equations 3 and 5."""
            action_t = self.actor(b.obs)["action"].tanh()
            q = self.value(self.critic, b.obs, action_t)
            scale = self.config.alpha / self.mean_of_group(q.detach().abs().mean())
            return -scale * q.mean() + (action_t - b.unit_action).square().mean()
