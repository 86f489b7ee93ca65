"""A game of two agents that requires memory: each sees a sign in the first step only, and names it in the last one."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

AGENTS = ["one", "other"]


class RememberedSigns(ParallelEnv):
    """As a team, both get half of 1 if both are right; as opponents (`versus`), who is right gets what the other loses.

    Without memory, a team gets 1/4 in the mean, and opponents are right half of the time.
    """

    metadata: dict[str, Any] = {"name": "remembered_signs"}
    possible_agents = AGENTS

    def __init__(self, versus: bool = False, steps: int = 3) -> None:
        self.versus, self.steps = versus, steps
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return Box(-1, 1, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.t = list(AGENTS), 0
        self.signs = np.random.default_rng(seed).integers(2, size=2)
        return self._observe(), {agent: {} for agent in AGENTS}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.t += 1
        over = self.t == self.steps
        rewards = [0.0, 0.0]
        if over:
            right = [
                int(actions[agent]) == sign for agent, sign in zip(AGENTS, self.signs, strict=True)
            ]
            gain = float(right[0]) - float(right[1])
            rewards = [gain, -gain] if self.versus else [all(right) / 2] * 2
            self.agents = []
        ends = dict.fromkeys(AGENTS, over), dict.fromkeys(AGENTS, False)
        rewards_of = dict(zip(AGENTS, rewards, strict=True))
        return self._observe(), rewards_of, *ends, {agent: {} for agent in AGENTS}

    def _observe(self) -> dict[str, Any]:
        """The sign in the first step, and whether this is the last one."""
        is_last = float(self.t == self.steps - 1)
        signs = 2 * self.signs - 1 if self.t == 0 else np.zeros(2)
        rows = (np.array([sign, is_last], np.float32) for sign in signs)
        return dict(zip(AGENTS, rows, strict=True))
