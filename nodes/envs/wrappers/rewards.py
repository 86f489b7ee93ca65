"""Rewards as learning sees them. Returns that are reported are of the env's own."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from flowrl.core.config import param
from flowrl.nodes.envs.wrappers.wrapper import Wrapper


class RewardClip(Wrapper):
    """Rewards are held within bounds, or become their sign."""

    class Config(Wrapper.Config):
        low: float = param(-1.0, "the least reward")
        high: float = param(1.0, "the greatest reward")
        how: Literal["clip", "sign"] = param("clip", "`sign`: -1, 0 or 1 (the bounds do not count)")

        @model_validator(mode="after")
        def low_is_below_high(self) -> RewardClip.Config:
            """Else all rewards were the same."""
            if self.low >= self.high:
                raise ValueError(
                    f"low is {self.low:g}, high is {self.high:g}; low is the lesser one"
                )
            return self

    def wrap(self, env: Any) -> Any:
        """The env with such rewards."""
        from flowrl.nodes.envs.wrapped.rewards import RewardClipEnv

        return RewardClipEnv(env, self.config)


class RewardNormalise(Wrapper):
    """Rewards in units of the deviation of the discounted return so far, in this env.

    Each env measures for itself, from its first episode on, so nothing depends on which envs lie
    beside it. (`ppo` with `normalise_values` needs no such wrapper.)
    """

    across_episodes = True

    class Config(Wrapper.Config):
        gamma: float = param(
            0.99, "discount of the returns whose deviation is the unit", ge=0, lt=1
        )
        limit: float = param(10.0, "rewards are held within +- this", gt=0)

    def wrap(self, env: Any) -> Any:
        """The env with such rewards."""
        from flowrl.nodes.envs.wrapped.rewards import RewardNormaliseEnv

        return RewardNormaliseEnv(env, self.config.gamma, self.config.limit)
