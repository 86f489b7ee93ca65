"""Turn-based games of PettingZoo for tests, and a plain, slow definition of the rows that they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import AECEnv

RANDOM_TURNS = "tests.nodes.envs.turn_envs:RandomTurns"
FIXED_TURNS = "tests.nodes.envs.turn_envs:FixedTurns"


class RandomTurns(AECEnv):
    """Who acts, who receives rewards, and who dies, is random and follows from the seed and the actions.

    An agent observes its number, the number of the game's steps, and the sum of all actions. With `masks`, one of three
    actions is allowed at each turn, and none at the end.
    """

    metadata: dict[str, Any] = {"name": "random_turns", "render_modes": ["rgb_array"]}

    def __init__(
        self,
        agents: int = 3,
        death: float = 0.1,
        cut: float = 0.5,
        again: float = 0.3,
        dead_first: bool = True,
        masks: bool = False,
        fails: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        """Each agent dies in a step with the probability `death`, and is truncated then with the probability `cut`.

        `again` is the probability that an agent acts again. Without `dead_first`, dead agents wait for their turn.
        """
        self.possible_agents = [f"agent_{k}" for k in range(agents)]
        self.agents: list[str] = []
        self.death, self.cut, self.again, self.fails = death, cut, again, fails
        self.dead_first, self.masks, self.render_mode = dead_first, masks, render_mode

    def observation_space(self, agent: str) -> Any:
        box = Box(-np.inf, np.inf, (3,), np.float32)
        if not self.masks:
            return box
        return Dict({"observation": box, "action_mask": Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.agents, self.t, self.sum = list(self.possible_agents), 0, 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {"t": 0} for agent in self.agents}
        self.agent_selection = self._draw()

    def observe(self, agent: str) -> Any:
        k = self.possible_agents.index(agent)
        obs = np.array([k, self.t, self.sum], np.float32)
        if not self.masks:
            return obs
        mask = np.zeros(3, np.int8)
        over = self.terminations[agent] or self.truncations[agent]
        if agent == self.agent_selection and not over:
            mask[(k + self.t) % 3] = 1
        return {"observation": obs, "action_mask": mask}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            if not self.dead_first and self.agents:
                self.agent_selection = self._draw()
            return
        if self.rng.random() < self.fails:
            raise ZeroDivisionError("the game fell over")
        k = self.possible_agents.index(agent)
        assert not self.masks or action == (k + self.t) % 3
        self._cumulative_rewards[agent] = 0.0
        self.t += 1
        self.sum += int(action) + 1
        for one in self.agents:
            lucky = self.rng.random() < 0.6
            self.rewards[one] = float(self.rng.integers(-4, 5) * 4 + int(action)) if lucky else 0.0
            if self.rng.random() < self.death and not (
                self.terminations[one] or self.truncations[one]
            ):
                ends = self.truncations if self.rng.random() < self.cut else self.terminations
                ends[one] = True
            self.infos[one] = {"t": self.t}
        self._accumulate_rewards()
        if self.rng.random() >= self.again or self.terminations[agent] or self.truncations[agent]:
            self.agent_selection = self._draw()
        if self.dead_first:
            self._deads_step_first()

    def _draw(self) -> str:
        living = [a for a in self.agents if not (self.terminations[a] or self.truncations[a])]
        drawn = living if self.dead_first and living else self.agents
        return drawn[self.rng.integers(len(drawn))]

    def render(self) -> Any:
        return np.full((8, 8, 3), self.t, np.uint8)


class FixedTurns(RandomTurns):
    """The agents act in a fixed order: `order` names them by letters; the game is over after the last one.

    Each step gives agent k the reward 10^k; `end` says how the episodes end.
    """

    def __init__(
        self, order: str = "abab", count: int = 2, end: str = "terminated", **kwargs: Any
    ) -> None:
        super().__init__(count, death=0.0, **kwargs)
        self.order, self.end = order, end

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0.0
        self.t += 1
        self.sum += int(action) + 1
        for k, agent in enumerate(self.agents):
            self.rewards[agent] = 10.0**k
            over = self.t == len(self.order)
            self.terminations[agent] = over and self.end in ("terminated", "both")
            self.truncations[agent] = over and self.end in ("truncated", "both")
            self.infos[agent] = {"t": self.t}
        self._accumulate_rewards()
        self.agent_selection = self._draw()
        self._deads_step_first()

    def _draw(self) -> str:
        return self.possible_agents["abc".index(self.order[min(self.t, len(self.order) - 1)])]


class Row(NamedTuple):
    obs: Any
    action: int
    reward: float
    next_obs: Any
    terminated: bool
    truncated: bool


class PlayedGame(NamedTuple):
    rows: dict[int, list[Row]]  # by the number of the agent
    episodes: dict[int, tuple[float, int]]  # return and length


def play_by_definition(
    env: Any, seed: int, act: Callable[[int, Any], int], limit: int | None = None
) -> PlayedGame:
    """Play one game as PettingZoo's documentation does, and keep each agent's transitions.

    A transition leads from an agent's turn to its next turn, or to what it observes when it is dead.
    """
    env.reset(seed=seed)
    rows: dict[int, list[Row]] = {k: [] for k in range(len(env.possible_agents))}
    totals, begun = dict.fromkeys(rows, 0.0), {}
    episodes: dict[int, tuple[float, int]] = {}
    steps = 0

    def turn(agent: str, obs: Any, reward: float, terminated: bool, truncated: bool) -> None:
        k = env.possible_agents.index(agent)
        totals[k] += reward
        if k in begun:
            rows[k].append(Row(*begun.pop(k), reward, obs, terminated, truncated))
        if terminated or truncated:
            episodes[k] = totals[k], len(rows[k])

    for agent in env.agent_iter():
        obs, reward, terminated, truncated, _ = env.last()
        over = terminated or truncated
        if steps == limit and not over:
            break
        turn(agent, obs, reward, terminated, truncated)
        k = env.possible_agents.index(agent)
        action = None if over else act(k, obs)
        if not over:
            begun[k] = (obs, action)
            steps += 1
        env.step(action)
    for agent in env.agents:  # the limit was reached
        terminated, truncated = env.terminations[agent], env.truncations[agent]
        own = env._cumulative_rewards[agent]
        turn(agent, env.observe(agent), own, terminated, truncated or not terminated)
    return PlayedGame(rows, episodes)
