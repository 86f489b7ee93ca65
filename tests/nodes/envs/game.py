"""A small deterministic game with images, lives and an action mask; and wrappers for it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from flowrl.core.import_paths import import_any_object
from flowrl.nodes.catalogue import CATALOGUE
from flowrl.nodes.envs.wrappers.wrapper import Wrapper

GAME = "tests.nodes.envs.game:Game"


class Game(gymnasium.Env):
    """Observations are noise; rewards repeat in order; `length` steps are divided into `lives`."""

    def __init__(
        self, length: int = 20, lives: int = 2, rewards: list[float] | None = None
    ) -> None:
        self.observation_space = Box(0, 255, (8, 10, 3), np.uint8)
        self.action_space = Discrete(3)
        self.length, self.lives, self.rewards = length, lives, rewards or [3.0]
        self.total = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.taken, self.total = 0, [], 0.0
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.t < self.length, "stepped after the end"
        reward = self.rewards[self.t % len(self.rewards)]
        self.t += 1
        self.taken.append(int(action))
        self.total += reward
        return self._obs(), reward, self.t == self.length, False, self._info()

    def _obs(self) -> Any:
        return self.np_random.integers(256, size=(8, 10, 3), dtype=np.uint8)

    def _info(self) -> dict[str, Any]:
        mask = np.ones(3)
        mask[2 - self.t % 3] = 0
        return {"lives": self.lives - self.t * self.lives // self.length, "action_mask": mask}


def make_game(size: int) -> Game:
    """A function that makes an env."""
    return Game(length=size)


def make_wrapper(name: str, **params: Any) -> Wrapper:
    """A wrapper by its type in graphs."""
    wrapper: Wrapper = import_any_object(CATALOGUE["wrapper"][name])(**params)
    return wrapper
