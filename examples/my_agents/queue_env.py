"""An env of many agents: PettingZoo's parallel interface, and nothing else."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Queue(ParallelEnv):
    """Walkers in a corridor where nobody can pass: each leaves by the door at its right end, which pays 1.

    A step costs, and pushing somebody costs five times that. Who has left plays no more.
    """

    metadata = {"name": "queue"}

    def __init__(self, walkers: int = 3, length: int = 8, step_cost: float = 0.01) -> None:
        self.possible_agents = [f"walker_{k}" for k in range(walkers)]
        self.agents: list[str] = []
        self.length, self.step_cost = length, step_cost
        self._spaces = Box(0.0, 1.0, (3,), np.float32), Discrete(3)

    def observation_space(self, agent: str) -> Any:
        """Where one is, and who stands beside: at the left, at the right."""
        return self._spaces[0]

    def action_space(self, agent: str) -> Any:
        """Left, wait, right."""
        return self._spaces[1]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """All randomness from the seed: then runs can be repeated."""
        rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        places = rng.choice(self.length, len(self.agents), replace=False)
        self.at = dict(zip(self.agents, map(int, places), strict=True))
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        """In the order of their names; each agent has its own reward, and its own end."""
        acted = list(self.agents)
        rewards = dict.fromkeys(acted, -self.step_cost)
        for agent, action in actions.items():
            there = max(0, self.at[agent] + int(action) - 1)
            if there == self.length:
                rewards[agent] += 1.0
                del self.at[agent]
            elif there in self.at.values() and there != self.at[agent]:
                rewards[agent] -= 4 * self.step_cost
            else:
                self.at[agent] = there
        self.agents = [agent for agent in acted if agent in self.at]
        left = {agent: agent not in self.at for agent in acted}
        cut = dict.fromkeys(acted, False)  # the graph says when a game is cut off
        last = {agent: np.array([1, 0, 0], np.float32) for agent in acted if left[agent]}
        return {**self._seen(), **last}, rewards, left, cut, {agent: {} for agent in acted}

    def _seen(self) -> dict[str, Any]:
        taken = set(self.at.values())
        return {
            agent: np.array([at / self.length, at - 1 in taken, at + 1 in taken], np.float32)
            for agent, at in self.at.items()
        }
