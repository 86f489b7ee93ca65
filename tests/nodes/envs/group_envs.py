"""An env of agents that differ, for tests, and managers of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from flowrl.core.context import Context
from flowrl.nodes.envs.pettingzoo import PettingZoo
from tests.nodes.env_managers.manager_kinds import KINDS

PASTURE = "tests.nodes.envs.group_envs:Pasture"
BY_NAME = {"wolves": ["wolf_*"], "sheep": ["sheep_*"]}
# The agents that act in each step, by the first letter of their names and their numbers. Then the game is over.
SCRIPT = ["w0 w1 s0", "w0 w1 s0", "w0 w1", "w1 s0", "w0 w1 s0", "w0 s0"]
NAMES = {"w0": "wolf_0", "w1": "wolf_1", "s0": "sheep_0"}


class Pasture(ParallelEnv):
    """In step t the agents of `game[t]` act. One that is not in `game[t + 1]` has terminated; the last are truncated.

    All observe (episode seed, t, own number, the sum of all actions so far); sheep do not see their number. A wolf is
    rewarded for the action 1 + its number, a sheep for a positive action, and both get t more. `fails` is the
    probability that a step raises.
    """

    metadata: dict[str, Any] = {"name": "pasture", "render_modes": ["rgb_array"]}

    def __init__(
        self,
        game: list[str] | None = None,
        fails: float = 0.0,
        wrong: str = "",
        shows_seed: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = [*NAMES.values()]
        self.agents: list[str] = []
        self.game, self.fails, self.wrong = game or SCRIPT, fails, wrong
        self.shows_seed = shows_seed

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (4 if agent.startswith("wolf") else 3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(3) if agent.startswith("wolf") else Box(-2, 2, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.rng = np.random.default_rng(seed)
        self.seed = float((seed or 0) % 1000) if self.shows_seed else 0.0
        self.t, self.sum = 0, 0.0
        self.agents = self._acting(0)
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        acted, t = self.agents, self.t
        assert list(actions) == acted
        if self.rng.random() < self.fails:
            raise ZeroDivisionError("the gate fell over")
        self.t += 1
        self.sum += sum(float(np.sum(action)) for action in actions.values())
        self.agents = self._acting(self.t)
        over = not self.agents
        ended = {a: a not in self.agents for a in acted}
        if self.wrong == "vanishes" and t == 1:
            self.agents = [a for a in self.agents if a != acted[-1]]
        rewards = {a: self._reward(a, actions[a]) + t for a in acted}
        terminated = {a: one and not over for a, one in ended.items()}
        truncated = {a: one and over for a, one in ended.items()}
        present = dict.fromkeys([*acted, *self.agents])
        return self._observe(present), rewards, terminated, truncated, {a: {} for a in present}

    def render(self) -> Any:
        return np.full((8, 8, 3), self.t, np.uint8)

    def _acting(self, t: int) -> list[str]:
        return [NAMES[one] for one in self.game[t].split()] if t < len(self.game) else []

    def _reward(self, agent: str, action: Any) -> float:
        if agent.startswith("wolf"):
            return float(action == 1 + int(agent[-1]))
        return float(action[0] > 0)

    def _observe(self, agents: Any) -> dict[str, Any]:
        found = {}
        for agent in agents:
            known = [self.seed, float(self.t), float(agent[-1]), self.sum]
            if agent.startswith("sheep"):
                del known[2]
            found[agent] = np.array(known, np.float32)
        return found


def pasture(groups: Any = None, limit: int | None = None, **kwargs: Any) -> PettingZoo:
    """An env part; `kwargs` are those of `Pasture`."""
    return PettingZoo(
        id=PASTURE,
        agents={"groups": groups or BY_NAME},
        kwargs=kwargs,
        max_episode_steps=limit,
    )


def make_manager(env: PettingZoo, kind: str = "serial", count: int = 2, **params: Any) -> Any:
    """A manager of this kind, seeded as in a graph."""
    manager_class, defaults = KINDS[kind]
    config = manager_class.Config(env=env, count=count, **{**defaults, **params})
    return manager_class(config=config, context=Context("envs", seed=1))
