"""The two-step game of QMIX (Rashid et al. 2018, section 5.1), which values that are only summed cannot solve."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from flowrl.core.batch import Array

PAYOFFS = np.array([[[7.0, 7.0], [7.0, 7.0]], [[0.0, 1.0], [1.0, 8.0]]])  # in the states 2A and 2B


class TwoStepGame:
    """Two agents, with PettingZoo's parallel interface. In the first step, the first one chooses the second state.

    In 2A, the payoff is 7 for all actions. In 2B it is 8 if both take their second action, 1 if one of them does, and
    otherwise 0. Both agents observe the state, and each gets half of the payoff.
    """

    metadata: dict[str, Any] = {"name": "two_step_game"}
    possible_agents = ("first", "second")
    state_space = Box(0, 1, (3,), np.float32)

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.now = 0  # 0: the first state, 1: 2A, 2: 2B

    def observation_space(self, agent: str) -> Any:
        return self.state_space

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.now = list(self.possible_agents), 0
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        chosen = [int(actions[agent]) for agent in self.possible_agents]
        over = self.now > 0
        payoff = float(PAYOFFS[self.now - 1, chosen[0], chosen[1]]) if over else 0.0
        if over:
            self.agents = []
        else:
            self.now = 1 + chosen[0]
        each = self.possible_agents
        return (
            self._observe(),
            dict.fromkeys(each, payoff / 2),
            dict.fromkeys(each, over),
            dict.fromkeys(each, False),
            {agent: {} for agent in each},
        )

    def state(self) -> Array:
        """One-hot: the first state, 2A, 2B."""
        return np.eye(3, dtype=np.float32)[self.now]

    def render(self) -> None:
        """There is nothing to see."""

    def close(self) -> None:
        """There is nothing to close."""

    def _observe(self) -> dict[str, Array]:
        return {agent: self.state() for agent in self.possible_agents}
