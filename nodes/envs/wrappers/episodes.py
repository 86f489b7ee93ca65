"""Wrappers that change where episodes begin and end."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.wrappers.lazy_base import EnvWrapper
from flowrl.nodes.envs.wrappers.wrapper import EpisodeRng, Wrapper


class TimeLimit(Wrapper):
    """Truncates episodes after a number of steps of the wrapped env."""

    works_per_agent = False

    class Config(Wrapper.Config):
        steps: int = param(..., "steps after which an episode is truncated", ge=1)

    def wrap(self, env: Any) -> Any:
        from gymnasium.wrappers import TimeLimit

        return TimeLimit(env, self.config.steps)


class NoopStart(Wrapper):
    """Begins episodes with a random number of no-op steps, for different initial states (Mnih et al. 2015)."""

    works_per_agent = False

    class Config(Wrapper.Config):
        most: int = param(30, "the largest number of no-op steps; it is drawn from 1 to this", ge=1)
        action: int = param(0, "the action that has no effect", ge=0)

    def wrap(self, env: Any) -> Any:
        _require_action(env, self.config.action, "noop_start")
        return NoopStartEnv(env, self.config.most, self.config.action)


class NoopStartEnv(EnvWrapper):
    """The number of no-ops follows from the episode's seed."""

    def __init__(self, env: Any, most: int, action: int) -> None:
        super().__init__(env)
        self._most, self._action, self._random = most, action, EpisodeRng("noop_start")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Reset and take the no-ops; an episode that ends meanwhile is reset again."""
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self._random.begin(seed).integers(1, self._most + 1))):
            obs, _, terminated, truncated, info = self.env.step(self._action)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


class FireOnReset(Wrapper):
    """Presses the start button of games that wait for it."""

    works_per_agent = False

    class Config(Wrapper.Config):
        action: int = param(1, "the action of the button", ge=0)

    def wrap(self, env: Any) -> Any:
        _require_action(env, self.config.action, "fire_on_reset")
        return FireOnResetEnv(env, self.config.action)


class FireOnResetEnv(EnvWrapper):
    def __init__(self, env: Any, action: int) -> None:
        super().__init__(env)
        self._action = action

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Reset and press; an episode that this ends is reset again."""
        self.env.reset(seed=seed, options=options)
        obs, _, terminated, truncated, info = self.env.step(self._action)
        return self.env.reset(options=options) if terminated or truncated else (obs, info)


class EpisodicLife(Wrapper):
    """Ends the learner's episode when a life is lost; the game continues in the next episode.

    Returns are then per life. Evaluate without this wrapper (`only: collect`) to get returns of whole games.
    """

    spans_episodes = True
    works_per_agent = False

    class Config(Wrapper.Config):
        action: int = param(0, "the action that begins the next life", ge=0)

    def wrap(self, env: Any) -> Any:
        _require_action(env, self.config.action, "episodic_life")
        return EpisodicLifeEnv(env, self.config.action)


class EpisodicLifeEnv(EnvWrapper):
    """Starts a new game when the last one is over, or when a reset came in the middle of a life."""

    def __init__(self, env: Any, action: int) -> None:
        super().__init__(env)
        self._action, self._lives, self._game_continues = action, 0, False

    def get_carry_over(self) -> dict[str, Any] | None:
        """Nothing is carried into a new game; None says that the next life continues this game."""
        return None if self._game_continues else {}

    def set_carry_over(self, data: dict[str, Any]) -> None:
        """Do nothing: the first life of a game does not depend on earlier games."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin the next life, or the next game."""
        if self._game_continues:
            obs, _, terminated, truncated, info = self.env.step(self._action)
            if terminated or truncated:
                obs, info = self.env.reset(seed=seed, options=options)
        else:
            obs, info = self.env.reset(seed=seed, options=options)
        self._game_continues, self._lives = False, self._count_lives(info)
        return obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = self._count_lives(info)
        lost, self._lives = lives < self._lives, lives
        self._game_continues = lost and not (terminated or truncated)
        return obs, reward, terminated or lost, truncated, info

    def _count_lives(self, info: Any) -> int:
        if "lives" in info:
            return int(info["lives"])
        emulator = getattr(self.env.unwrapped, "ale", None)
        if emulator is None:
            what = "episodic_life: the env does not count lives (`info['lives']`, or `ale`)"
            raise UnsoundError(what, "leave the wrapper out", "env")
        return int(emulator.lives())


def _require_action(env: Any, action: int, wrapper: str) -> None:
    n = getattr(env.action_space, "n", None)
    if n is None or action >= n:
        what = f"{wrapper}: the env takes {env.action_space}, and the action is {action}"
        raise UnsoundError(what, "give another `action`, or leave the wrapper out", "env")
