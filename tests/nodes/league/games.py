"""Games of two sides with known solutions, as envs with PettingZoo's parallel interface."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from flowrl.core.batch import Array

PENNIES = np.array([[1.0, -1.0], [-1.0, 1.0]])
ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
# The larger of four numbers wins.
LARGER = np.sign(np.arange(4.0)[:, None] - np.arange(4.0))
GAMES = {"pennies": PENNIES, "rps": ROCK_PAPER_SCISSORS, "larger": LARGER}

PLAYED: list[
    tuple[int, list[list[int]]]
] = []  # of the newest matches: seed, and the actions of each round


class MatrixGame(ParallelEnv):
    """Each round, both sides choose at the same time. Side 0 gets the entry of the matrix, side 1 its negative.

    A side observes which side it is, the rounds played and, with `luck`, a random number of the episode. `fails` is the
    probability that a round raises.
    """

    metadata: dict[str, Any] = {"name": "matrix_game"}

    def __init__(
        self,
        game: str = "rps",
        rounds: int = 1,
        fails: float = 0.0,
        sides: int = 2,
        luck: bool = True,
    ) -> None:
        self.has_luck = luck
        self.matrix, self.rounds, self.fails = GAMES[game], rounds, fails
        self.possible_agents = [f"side_{k}" for k in range(sides)]
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(len(self.matrix))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.rng = np.random.default_rng(seed)
        self.luck, self.chosen = self.rng.random() * self.has_luck, []
        self.agents = list(self.possible_agents)
        PLAYED.append((int(seed or 0), self.chosen))
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        if self.rng.random() < self.fails:
            raise ZeroDivisionError("the table fell over")
        agents = list(self.agents)
        chosen = [int(actions[agent]) for agent in agents]
        self.chosen.append(chosen)
        value = float(self.matrix[chosen[0], chosen[1]])
        over = len(self.chosen) == self.rounds
        if over:
            self.agents = []
        rewards = {agent: value if k == 0 else -value for k, agent in enumerate(agents)}
        ends = dict.fromkeys(agents, over), dict.fromkeys(agents, False)
        return self._observe(agents), rewards, *ends, {agent: {} for agent in agents}

    def _observe(self, agents: list[str] | None = None) -> dict[str, Any]:
        rows = np.zeros((len(self.possible_agents), 4), np.float32)
        for k, row in enumerate(rows):
            row[k % 2], row[2], row[3] = 1.0, len(self.chosen), self.luck
        of_all = dict(zip(self.possible_agents, rows, strict=True))
        return {agent: of_all[agent] for agent in agents or self.agents}


def nash_conv(matrix: Array, one: Array, other: Array) -> float:
    """How much both sides together could gain by best responses to these strategies of side 0 and side 1."""
    value = one @ matrix @ other
    return float((matrix @ other).max() - value + value - (one @ matrix).min())
