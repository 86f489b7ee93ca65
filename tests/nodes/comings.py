"""An env of agents that come, go and return as written."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv

NAMES = ["a", "b", "c"]
# who plays from step to step; in the end of each of these a game is over
GAME = ["ab", "ab", "b", "cab", "ca", "c"]


class Comings(ParallelEnv):
    """In step t the agents of `game[t]` act; whoever is not in `game[t + 1]` was terminated, or cut off (`cut`).

    Agent k sees (episode seed, 10 t + k) and gets 100 k + t, and a half more if it did 1. `space`: box
    (and real-valued actions), choice (of two, as in the others), mask or discrete (what is seen).
    `fails` is the chance that a step raises.
    """

    metadata: dict[str, Any] = {"name": "comings"}

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
        self.possible_agents = list(names or NAMES)
        self.agents: list[str] = []
        self.game, self.cut, self.space, self.wrong = game or GAME, cut, space, wrong
        self.fails = fails
        self.asked: list[dict[str, Any]] = []

    def observation_space(self, agent: str) -> Any:
        seen = Box(-np.inf, np.inf, (2,), np.float32)
        mask = Dict({"observation": seen, "action_mask": Box(0, 1, (2,), np.int8)})
        return {"mask": mask, "discrete": Discrete(99)}.get(self.space, seen)

    def action_space(self, agent: str) -> Any:
        return Box(-2, 2, (1,), np.float32) if self.space == "box" else Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.rng = np.random.default_rng(seed)
        self.seed, self.t, self.agents = float((seed or 0) % 1000), 0, list(self.game[0])
        return self._told(self._one), {agent: {"t": 0} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        acted, t = self.agents, self.t
        assert list(actions) == acted
        self.asked.append(actions)
        if self.rng.random() < self.fails or (self.wrong == "raises" and t == 2):
            raise ZeroDivisionError("the game fell over")
        self.t += 1
        after = list(self.game[self.t]) if self.t < len(self.game) else []
        self.agents = after
        ended = {a: a not in after for a in acted}
        if self.wrong == "silent":
            ended = dict.fromkeys(acted, False)
        if self.wrong == "stays":
            ended = {a: a == acted[0] for a in acted}
        final = {a: over and a not in self.cut for a, over in ended.items()}
        cut = {a: over and a in self.cut for a, over in ended.items()}
        reward = {a: 100.0 * self._k(a) + t + 0.5 * self._is_one(actions[a]) for a in acted}
        if self.wrong == "nan":
            reward[acted[-1]] = float("nan")
        both = dict.fromkeys([*acted, *after])
        seen = {a: self._one(a) for a in both if (self.wrong, a) != ("unseen", acted[-1])}
        return seen, reward, final, cut, {a: {"t": self.t} for a in both}

    def render(self) -> Any:
        return np.full((8, 8, 3), self.t, np.uint8)

    def _k(self, agent: str) -> int:
        return NAMES.index(agent)

    def _is_one(self, action: Any) -> bool:
        return bool(np.all(action == 1))

    def _told(self, of: Any) -> dict[str, Any]:
        return {agent: of(agent) for agent in self.agents}

    def _one(self, agent: str) -> Any:
        k = self._k(agent)
        if self.space == "discrete":
            return 10 * self.t + k
        seen = np.array([self.seed, 10 * self.t + k], np.float32)
        if self.space != "mask":
            return seen
        return {"observation": seen, "action_mask": np.array([self.t % 2, 1], np.int8)}
