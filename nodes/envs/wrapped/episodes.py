"""Where episodes begin and end, at work."""

from __future__ import annotations

from typing import Any

from gymnasium import Wrapper

from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.wrappers.wrapper import EpisodeRng


class NoopStartEnv(Wrapper):
    """How long it waits follows from the episode's seed."""

    def __init__(self, env: Any, most: int, action: int) -> None:
        super().__init__(env)
        self._most, self._action, self._random = most, action, EpisodeRng("noop_start")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin, and wait; an episode that ends meanwhile begins again."""
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self._random.begin(seed).integers(1, self._most + 1))):
            obs, _, terminated, truncated, info = self.env.step(self._action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


class FireOnResetEnv(Wrapper):
    """Begins with one step."""

    def __init__(self, env: Any, action: int) -> None:
        super().__init__(env)
        self._action = action

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin, and press; an episode that ends by it begins again."""
        self.env.reset(seed=seed, options=options)
        obs, _, terminated, truncated, info = self.env.step(self._action)
        return self.env.reset(options=options) if terminated or truncated else (obs, info)


class EpisodicLifeEnv(Wrapper):
    """A new game begins where the old one is over, or was left in the middle of a life."""

    def __init__(self, env: Any, action: int) -> None:
        super().__init__(env)
        self._action, self._lives, self._goes_on = action, 0, False

    def carried(self) -> dict[str, Any] | None:
        """Nothing, where a new game begins; a life is a part of its game."""
        return None if self._goes_on else {}

    def carry(self, nothing: dict[str, Any]) -> None:
        """A game's first life has nothing of those before."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """The next life, or the next game."""
        if self._goes_on:
            obs, _, terminated, truncated, info = self.env.step(self._action)
            if terminated or truncated:
                obs, info = self.env.reset(seed=seed, options=options)
        else:
            obs, info = self.env.reset(seed=seed, options=options)
        self._goes_on, self._lives = False, self._left(info)
        return obs, info

    def step(self, action: Any) -> Any:
        """A lost life ends the episode."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        left = self._left(info)
        lost, self._lives = left < self._lives, left
        self._goes_on = lost and not (terminated or truncated)
        return obs, reward, terminated or lost, truncated, info

    def _left(self, info: Any) -> int:
        if "lives" in info:
            return int(info["lives"])
        machine = getattr(self.env.unwrapped, "ale", None)
        if machine is None:
            what = "episodic_life: the env does not count lives (`info['lives']`, or `ale`)"
            raise UnsoundError(what, "leave the wrapper out", "env")
        return int(machine.lives())
