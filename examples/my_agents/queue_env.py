"""Your own env with several agents needs PettingZoo's parallel interface, and nothing else."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Queue(ParallelEnv):
    """Agents in a corridor who cannot pass each other. Each leaves by the door at the right end, for a reward of 1.

    A step has a cost; bumping into another agent costs five times as much. An agent's episode ends when it leaves.
    """

    metadata = {"name": "queue"}

    def __init__(self, walkers: int = 3, length: int = 8, step_cost: float = 0.01) -> None:
        self.possible_agents = [f"walker_{k}" for k in range(walkers)]
        self.agents: list[str] = []
        self.length, self.step_cost = length, step_cost
        self._spaces = Box(0.0, 1.0, (3,), np.float32), Discrete(3)

    def observation_space(self, agent: str) -> Any:
        """The agent's position, and whether others stand to its left and right."""
        return self._spaces[0]

    def action_space(self, agent: str) -> Any:
        """The actions are left, wait and right."""
        return self._spaces[1]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Draw only from a generator with this seed, so that runs are repeatable."""
        rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        positions = rng.choice(self.length, len(self.agents), replace=False)
        self.positions = dict(zip(self.agents, map(int, positions), strict=True))
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        """Move one agent after another; each has its own reward and its own end."""
        acting = list(self.agents)
        rewards = dict.fromkeys(acting, -self.step_cost)
        for agent, action in actions.items():
            target = max(0, self.positions[agent] + int(action) - 1)
            if target == self.length:
                rewards[agent] += 1.0
                del self.positions[agent]
            elif target in self.positions.values() and target != self.positions[agent]:
                rewards[agent] -= 4 * self.step_cost
            else:
                self.positions[agent] = target
        self.agents = [agent for agent in acting if agent in self.positions]
        terminated = {agent: agent not in self.positions for agent in acting}
        truncated = dict.fromkeys(acting, False)  # the graph's `max_episode_steps` truncates games
        final = {agent: np.array([1, 0, 0], np.float32) for agent in acting if terminated[agent]}
        infos: dict[str, Any] = {agent: {} for agent in acting}
        return {**self._observations(), **final}, rewards, terminated, truncated, infos

    def _observations(self) -> dict[str, Any]:
        taken = set(self.positions.values())
        return {
            agent: np.array([p / self.length, p - 1 in taken, p + 1 in taken], np.float32)
            for agent, p in self.positions.items()
        }
