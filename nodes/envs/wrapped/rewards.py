"""Rewards as learning sees them, at work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Wrapper

from flowrl.nodes.moments import Moments

if TYPE_CHECKING:
    from flowrl.nodes.envs.wrappers.rewards import RewardClip


class RewardClipEnv(Wrapper):
    """Changes the reward of each step."""

    def __init__(self, env: Any, config: RewardClip.Config) -> None:
        super().__init__(env)
        self._config = config

    def step(self, action: Any) -> Any:
        """As the env does, with another reward."""
        obs, given, *rest = self.env.step(action)
        c, reward = self._config, np.float64(given)
        changed = np.sign(reward) if c.how == "sign" else np.clip(reward, c.low, c.high)
        return obs, float(changed), *rest


class RewardNormaliseEnv(Wrapper):
    """Measures the discounted sum of past rewards (Engstrom et al. 2020, section 3)."""

    def __init__(self, env: Any, gamma: float, limit: float) -> None:
        super().__init__(env)
        self._gamma, self._limit = gamma, limit
        self._moments, self._sum = Moments(), 0.0

    def carried(self) -> dict[str, float]:
        """The unit."""
        return {name: float(value) for name, value in self._moments.state_dict().items()}

    def carry(self, moments: dict[str, float]) -> None:
        """Go on with it."""
        self._moments.load_state_dict(moments)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """A new sum; the unit stays."""
        self._sum = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        """As the env does, with the reward in units."""
        obs, reward, *rest = self.env.step(action)
        self._sum = self._gamma * self._sum + float(reward)
        self._moments.update(np.array([self._sum]))
        unit = float(reward) / float(self._moments.std)
        return obs, float(np.clip(unit, -self._limit, self._limit)), *rest
