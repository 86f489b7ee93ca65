"""Wrappers that change the rewards that a learner sees. Reported returns sum the env's own rewards."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import model_validator

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.wrappers.lazy_base import EnvWrapper
from flowrl.nodes.envs.wrappers.wrapper import Wrapper
from flowrl.nodes.moments import Moments


class RewardClip(Wrapper):
    """Clips rewards to bounds, or replaces them by their sign."""

    class Config(Wrapper.Config):
        low: float = param(-1.0, "the least reward")
        high: float = param(1.0, "the greatest reward")
        how: Literal["clip", "sign"] = param("clip", "`clip`: to the bounds; `sign`: to -1, 0 or 1")

        @model_validator(mode="after")
        def require_low_below_high(self) -> RewardClip.Config:
            if self.low >= self.high:
                what = f"low is {self.low:g} and high is {self.high:g}"
                raise UnsoundError(what, "low must be less than high", "low")
            return self

    def wrap(self, env: Any) -> Any:
        return RewardClipEnv(env, self.config)


class RewardClipEnv(EnvWrapper):
    def __init__(self, env: Any, config: RewardClip.Config) -> None:
        super().__init__(env)
        self._config = config

    def step(self, action: Any) -> Any:
        obs, own_reward, *rest = self.env.step(action)
        c, reward = self._config, np.float64(own_reward)
        clipped = np.sign(reward) if c.how == "sign" else np.clip(reward, c.low, c.high)
        return obs, float(clipped), *rest


class RewardGoal(Wrapper):
    """Replaces rewards by one for reaching the goal of the env, which is where its episodes terminate.

    A cost of each step makes values of new observations seem high at first, and so lets agents explore.
    Without it they have to find the goal by other means.
    """

    class Config(Wrapper.Config):
        reached: float = param(1.0, "the reward of the step that terminates the episode")
        otherwise: float = param(0.0, "the reward of all other steps")

        @model_validator(mode="after")
        def _check_rewards(self) -> Any:
            if self.reached == self.otherwise == 0:
                what = "with `reached: 0` and `otherwise: 0`, all rewards are 0"
                raise UnsoundError(what, "give one of them another value", "reached")
            return self

    def wrap(self, env: Any) -> Any:
        return RewardGoalEnv(env, self.config)


class RewardGoalEnv(EnvWrapper):
    def __init__(self, env: Any, config: RewardGoal.Config) -> None:
        super().__init__(env)
        self._config = config

    def step(self, action: Any) -> Any:
        obs, _, terminated, *rest = self.env.step(action)
        reward = self._config.reached if terminated else self._config.otherwise
        return obs, reward, terminated, *rest


class RewardNormalise(Wrapper):
    """Divides rewards by the standard deviation of the discounted return so far, in this env.

    Each env measures its own, from its first episode on, so results do not depend on which envs run beside it.
    (`ppo` with `normalise_values` needs no such wrapper.)
    """

    spans_episodes = True

    class Config(Wrapper.Config):
        gamma: float = param(
            0.99, "discount of the returns whose standard deviation is the unit", ge=0, lt=1
        )
        limit: float = param(10.0, "rewards are clipped to +- this", gt=0)

    def wrap(self, env: Any) -> Any:
        return RewardNormaliseEnv(env, self.config.gamma, self.config.limit)


class RewardNormaliseEnv(EnvWrapper):
    """Measures the discounted sum of past rewards (Engstrom et al. 2020, section 3)."""

    def __init__(self, env: Any, gamma: float, limit: float) -> None:
        super().__init__(env)
        self._gamma, self._limit = gamma, limit
        self._moments, self._sum = Moments(), 0.0

    def get_carry_over(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._moments.state_dict().items()}

    def set_carry_over(self, data: dict[str, float]) -> None:
        self._moments.load_state_dict(data)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin a new sum; the moments stay."""
        self._sum = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        self._sum = self._gamma * self._sum + float(reward)
        self._moments.update(np.array([self._sum]))
        normalised = float(reward) / float(self._moments.std)
        return obs, float(np.clip(normalised, -self._limit, self._limit)), *rest
