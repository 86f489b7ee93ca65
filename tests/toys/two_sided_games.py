"""A game of two sides with PettingZoo's parallel API, in which it matters what a policy has learned."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SIDES = ("first", "second")
ROUNDS, CHOICES = 5, 3


class LargestNumber:
    """Both sides see the same numbers. Who alone names the largest one wins the round."""

    possible_agents = [*SIDES]
    metadata: dict[str, Any] = {}

    def __init__(self, rounds: int = ROUNDS, choices: int = CHOICES) -> None:
        self._rounds, self._choices = rounds, choices

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(0, 1, (self._choices,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(self._choices)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._played = [*SIDES], 0
        return self._observations(), {agent: {} for agent in SIDES}

    def step(self, actions: dict[str, Any]) -> Any:
        right = [int(actions[agent]) == int(self._numbers.argmax()) for agent in SIDES]
        reward = float(right[0]) - float(right[1])
        self._played += 1
        over = self._played == self._rounds
        ends = dict.fromkeys(SIDES, over)
        if over:
            self.agents = []
        rewards = dict(zip(SIDES, (reward, -reward), strict=True))
        never, infos = dict.fromkeys(SIDES, False), {agent: {} for agent in SIDES}
        return self._observations(), rewards, ends, never, infos

    def close(self) -> None:
        pass

    def _observations(self) -> dict[str, Any]:
        self._numbers = self._rng.random(self._choices).astype(np.float32)
        return dict.fromkeys(SIDES, self._numbers)
