"""A game of your own for two sides needs PettingZoo's parallel interface, and nothing else."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Undercut(ParallelEnv):
    """In each round both sides name a number from 1 to 5 at the same time, and score it.

    A side whose number is exactly one less than the other's undercuts it: it scores both, and the other nothing. The
    rewards are the differences of the scores, divided by 10.
    """

    metadata = {"name": "undercut"}

    def __init__(self, rounds: int = 5) -> None:
        self.possible_agents = ["north", "south"]
        self.agents: list[str] = []
        self.rounds = rounds
        self._spaces = Box(0.0, 1.0, (3,), np.float32), Discrete(5)

    def observation_space(self, agent: str) -> Any:
        """The rounds played, the side's last number, and the other's."""
        return self._spaces[0]

    def action_space(self, agent: str) -> Any:
        """The number, less one."""
        return self._spaces[1]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Begin a match. A game with luck draws it from a generator with this seed."""
        self.agents = list(self.possible_agents)
        self.played, self.last = 0, (0, 0)
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        """Play a round."""
        agents = list(self.agents)
        north, south = (int(actions[agent]) + 1 for agent in agents)
        self.played, self.last = self.played + 1, (north, south)
        difference = north - south
        if abs(difference) == 1:
            difference = -difference * (north + south)
        rewards = dict(zip(agents, (difference / 10, -difference / 10), strict=True))
        over = self.played == self.rounds
        terminated, truncated = dict.fromkeys(agents, over), dict.fromkeys(agents, False)
        observations = self._observations()
        self.agents = [] if over else agents
        return observations, rewards, terminated, truncated, {agent: {} for agent in agents}

    def _observations(self) -> dict[str, Any]:
        north, south = self.last
        seen = ((north, south), (south, north))
        return {
            agent: np.array([self.played / self.rounds, own / 5, other / 5], np.float32)
            for agent, (own, other) in zip(self.possible_agents, seen, strict=True)
        }
