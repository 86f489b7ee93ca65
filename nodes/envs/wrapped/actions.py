"""Sticky and repeated actions, at work."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Wrapper
from gymnasium.spaces import Box
from gymnasium.wrappers import RescaleAction

from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.wrappers.wrapper import EpisodeRng


class StickyActionsEnv(Wrapper):
    """The first action of an episode is always taken."""

    def __init__(self, env: Any, probability: float) -> None:
        super().__init__(env)
        self._probability, self._random = probability, EpisodeRng("sticky_actions")
        self._rng, self._last = self._random.begin(None), None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Forgets the last action."""
        self._rng, self._last = self._random.begin(seed), None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """With this action, or the last."""
        if self._last is not None and self._rng.random() < self._probability:
            action = self._last
        self._last = action
        return self.env.step(action)


class ActionRepeatEnv(Wrapper):
    """Ends with the episode, however often the action was taken by then."""

    def __init__(self, env: Any, n: int, brightest: bool) -> None:
        super().__init__(env)
        if brightest and not isinstance(env.observation_space, Box):
            what = f"action_repeat: there is no maximum of {env.observation_space}"
            raise UnsoundError(what, "set brightest: false", "env")
        self._n, self._brightest = n, brightest

    def step(self, action: Any) -> Any:
        """The sum of so many steps."""
        total, before = 0.0, None
        for k in range(self._n):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated or k == self._n - 1:
                break
            before = obs
        if self._brightest and before is not None:
            obs = np.maximum(before, obs)
        return obs, total, terminated, truncated, info


def scale_actions(env: Any) -> Any:
    """The env with actions from -1 to 1."""
    space = env.action_space
    if not isinstance(space, Box) or not space.is_bounded():
        what = f"action_scale: actions are {space}"
        raise UnsoundError(what, "it needs a Box with bounds; leave it out", "env")
    return RescaleAction(env, np.float32(-1), np.float32(1))
