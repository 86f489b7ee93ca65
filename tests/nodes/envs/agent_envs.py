"""PettingZoo envs for tests: agents that join and leave by a script, and agents that can learn."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv

AGENTS = ["a", "b", "c"]
# The agents that act in each step. The game is over after the last one.
SCRIPT = ["ab", "ab", "b", "cab", "ca", "c"]


class ScriptedAgents(ParallelEnv):
    """In step t the agents of `game[t]` act. One that is not in `game[t + 1]` has terminated, or is truncated (`cut`).

    Agent k observes (episode seed, 10 t + k). Its reward is 100 k + t, and 0.5 more for the action 1. `space` is "box"
    (with real-valued actions), "choice" (two actions, as in the others), "mask" or "discrete" (observations).
    `wrong` chooses a violation of the interface. `fails` is the probability that a step raises.
    """

    metadata: dict[str, Any] = {"name": "scripted_agents"}

    def __init__(
        self,
        game: list[str] | None = None,
        cut: str = "",
        names: list[str] | None = None,
        space: str = "box",
        wrong: str = "",
        fails: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = list(names or AGENTS)
        self.agents: list[str] = []
        self.game, self.cut, self.space, self.wrong = game or SCRIPT, cut, space, wrong
        self.fails = fails
        self.received_actions: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> Any:
        box = Box(-np.inf, np.inf, (2,), np.float32)
        mask = Dict({"observation": box, "action_mask": Box(0, 1, (2,), np.int8)})
        return {"mask": mask, "discrete": Discrete(99)}.get(self.space, box)

    def action_space(self, agent: str) -> Any:
        return Box(-2, 2, (1,), np.float32) if self.space == "box" else Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.rng = np.random.default_rng(seed)
        self.seed, self.t, self.agents = float((seed or 0) % 1000), 0, list(self.game[0])
        obs = {agent: self._observe(agent) for agent in self.agents}
        return obs, {agent: {"t": 0} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        acted, t = self.agents, self.t
        assert list(actions) == acted
        self.received_actions.append(actions)
        if self.rng.random() < self.fails or (self.wrong == "raises" and t == 2):
            raise ZeroDivisionError("the game fell over")
        self.t += 1
        after = list(self.game[self.t]) if self.t < len(self.game) else []
        self.agents = after
        ended = {a: a not in after for a in acted}
        if self.wrong == "leaves without an end":
            ended = dict.fromkeys(acted, False)
        if self.wrong == "stays after its end":
            ended = {a: a == acted[0] for a in acted}
        terminated = {a: over and a not in self.cut for a, over in ended.items()}
        truncated = {a: over and a in self.cut for a, over in ended.items()}
        if self.wrong == "no word about the end":
            terminated[acted[-1]] = None  # type: ignore[assignment]
        reward = {a: 100.0 * _index(a) + t + 0.5 * bool(np.all(actions[a] == 1)) for a in acted}
        if self.wrong == "nan":
            reward[acted[-1]] = float("nan")
        present = dict.fromkeys([*acted, *after])
        no_obs = acted[-1] if self.wrong == "no observation" else None
        obs = {a: self._observe(a) for a in present if a != no_obs}
        return obs, reward, terminated, truncated, {a: {"t": self.t} for a in present}

    def render(self) -> Any:
        return np.full((8, 8, 3), self.t, np.uint8)

    def _observe(self, agent: str) -> Any:
        number = 10 * self.t + _index(agent)
        if self.space == "discrete":
            return number
        obs = np.array([self.seed, number], np.float32)
        if self.space != "mask":
            return obs
        return {"observation": obs, "action_mask": np.array([self.t % 2, 1], np.int8)}


def _index(agent: str) -> int:
    return AGENTS.index(agent)


class NumberedAgents(ParallelEnv):
    """Agent k observes (k + 1, t + 1), is rewarded for the action k, and leaves after `stays[k]` steps."""

    metadata: dict[str, Any] = {"name": "numbered_agents"}

    def __init__(
        self,
        stays: list[int] | None = None,
        cut_after: int = 99,
        masks: bool = False,
        odd: str = "",
        continuous: bool = False,
    ) -> None:
        self.stays = stays or [4, 4, 4]
        self.possible_agents = [f"agent_{k}" for k in range(len(self.stays))]
        self.agents: list[str] = []
        self.cut_after, self.masks, self.odd, self.continuous = cut_after, masks, odd, continuous

    def observation_space(self, agent: str) -> Any:
        size = 3 if agent == self.odd else 2
        box = Box(1, 99, (size,), np.float32)
        if not self.masks:
            return box
        return Dict({"observation": box, "action_mask": Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return Box(-1, 1, (2,), np.float32) if self.continuous else Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.t, self.seed = list(self.possible_agents), 0, seed
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents)
        self.t += 1
        acted = list(self.agents)
        index = self.possible_agents.index
        reward = {a: float(np.all(actions[a] == index(a))) for a in acted}
        terminated = {a: self.t >= self.stays[index(a)] for a in acted}
        truncated = {a: self.t >= self.cut_after and not terminated[a] for a in acted}
        self.agents = [a for a in acted if not terminated[a] and not truncated[a]]
        info = {a: {"number": index(a) + self.t / 4} for a in acted}
        return self._observe(acted), reward, terminated, truncated, info

    def _observe(self, agents: list[str]) -> dict[str, Any]:
        return {agent: self._observation_of(self.possible_agents.index(agent)) for agent in agents}

    def _observation_of(self, k: int) -> Any:
        obs = np.array([k + 1, self.t + 1], np.float32)
        if not self.masks:
            return obs
        mask = np.ones(3, np.int8)
        mask[(k + 1) % 3] = 0
        return {"observation": obs, "action_mask": mask}


class OptionAgents(NumberedAgents):
    """The first number that each agent observes at the start of an episode is an option of `reset`."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        observations, infos = super().reset(seed, options)
        for observation in observations.values():
            observation[0] = (options or {}).get("first", 1)
        return observations, infos
