"""Wrappers that change actions: sticky, repeated, rescaled."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.wrappers.lazy_base import EnvWrapper
from flowrl.nodes.envs.wrappers.wrapper import EpisodeRng, Wrapper


class StickyActions(Wrapper):
    """Sometimes repeats the previous action instead of the chosen one (Machado et al. 2018, section 5.2)."""

    works_per_agent = False

    class Config(Wrapper.Config):
        probability: float = param(
            0.25, "the probability that the last action is repeated", ge=0, lt=1
        )

    def wrap(self, env: Any) -> Any:
        return StickyActionsEnv(env, self.config.probability)


class StickyActionsEnv(EnvWrapper):
    """The first action of an episode is always taken as chosen."""

    def __init__(self, env: Any, probability: float) -> None:
        super().__init__(env)
        self._probability, self._random = probability, EpisodeRng("sticky_actions")
        self._rng, self._last = self._random.begin(None), None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._rng, self._last = self._random.begin(seed), None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self._last is not None and self._rng.random() < self._probability:
            action = self._last
        self._last = action
        return self.env.step(action)


class ActionRepeat(Wrapper):
    """Takes each action several times and sums the rewards."""

    works_per_agent = False

    class Config(Wrapper.Config):
        n: int = param(4, "env steps in each step of the agent", ge=1)
        brightest: bool = param(
            False,
            "observe the maximum of the last two frames, because old consoles draw some objects in every second one",
        )

    def wrap(self, env: Any) -> Any:
        return ActionRepeatEnv(env, self.config.n, self.config.brightest)


class ActionRepeatEnv(EnvWrapper):
    """Stops repeating where the episode ends."""

    def __init__(self, env: Any, n: int, brightest: bool) -> None:
        from gymnasium.spaces import Box

        super().__init__(env)
        if brightest and not isinstance(env.observation_space, Box):
            what = f"action_repeat: observations of {env.observation_space} have no maximum"
            raise UnsoundError(what, "set brightest: false", "env")
        self._n, self._brightest = n, brightest

    def step(self, action: Any) -> Any:
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


class ActionScale(Wrapper):
    """Real-valued actions range from -1 to 1, whatever the env's own bounds are."""

    def wrap(self, env: Any) -> Any:
        from gymnasium.spaces import Box
        from gymnasium.wrappers import RescaleAction

        space = env.action_space
        if not isinstance(space, Box) or not space.is_bounded():
            what = f"action_scale: actions are {space}"
            raise UnsoundError(what, "it needs a Box with bounds; leave it out", "env")
        return RescaleAction(env, np.float32(-1), np.float32(1))
