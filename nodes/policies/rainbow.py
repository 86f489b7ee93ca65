"""Rainbow (Hessel et al. 2018): C51 with double Q-learning, dueling and noisy layers and n-step returns.

The sixth part, prioritised replay, is the graph's buffer: `advanced_buffer` with an edge `learner.priorities`.
"""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param, part
from flowrl.nodes.policies.c51 import C51
from flowrl.nodes.schedules import Scheduled, scheduled

DEFAULT_MODEL = {"type": "auto", "noisy": True}


class Rainbow(C51):
    """C51 with the improvements that Rainbow combines; it explores by the noise of its layers."""

    class Config(C51.Config):
        model: Any = part("model", "the network of Q(s, ·)", shared="model", default=DEFAULT_MODEL)
        nstep: int = param(3, "rewards that are summed before the target bootstraps", ge=1)
        double: bool = param(
            True, "the online network chooses the next action, the target network evaluates it"
        )
        dueling: bool = param(True, "logits as those of the state plus those of each action")
        epsilon: Scheduled = scheduled(0.0, "share of random actions when collecting", ge=0, le=1)
