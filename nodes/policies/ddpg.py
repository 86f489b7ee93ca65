"""DDPG (Lillicrap et al. 2016): TD3 with one critic, without smoothing, and with an actor step in each iteration."""

from __future__ import annotations

from flowrl.core.config import param
from flowrl.nodes.policies.td3 import Td3


class Ddpg(Td3):
    """Learns a deterministic policy from replayed steps, with one critic."""

    class Config(Td3.Config):
        critics: int = param(1, "critics, of which targets take the minimum", ge=1)
        smoothing: float = param(0.0, "deviation of the noise in target actions", ge=0)
        actor_every_iters: int = param(1, "critic steps for each step of the actor", ge=1)
