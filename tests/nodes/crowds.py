"""Envs of many agents."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv


class Crowd(ParallelEnv):
    """Each agent sees its number and the step, and is right to do its number; agent k leaves after `stays[k]`."""

    metadata: dict[str, Any] = {"name": "crowd"}

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
        seen = Box(1, 99, (size,), np.float32)
        if not self.masks:
            return seen
        return Dict({"observation": seen, "action_mask": Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return Box(-1, 1, (2,), np.float32) if self.continuous else Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.t, self.seed = list(self.possible_agents), 0, seed
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert set(actions) == set(self.agents)
        self.t += 1
        acted = list(self.agents)
        right = {a: float(np.all(actions[a] == self.possible_agents.index(a))) for a in acted}
        gone = {a: self.t >= self.stays[self.possible_agents.index(a)] for a in acted}
        cut = {a: self.t >= self.cut_after and not gone[a] for a in acted}
        self.agents = [a for a in acted if not gone[a] and not cut[a]]
        return self._seen(acted), right, gone, cut, {a: {} for a in acted}

    def _seen(self, agents: list[str]) -> dict[str, Any]:
        return {agent: self._one(self.possible_agents.index(agent)) for agent in agents}

    def _one(self, k: int) -> Any:
        seen = np.array([k + 1, self.t + 1], np.float32)
        if not self.masks:
            return seen
        mask = np.ones(3, np.int8)
        mask[(k + 1) % 3] = 0
        return {"observation": seen, "action_mask": mask}
