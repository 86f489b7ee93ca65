"""Where episodes begin and end."""

from __future__ import annotations

from typing import Any

from flowrl.core.config import param
from flowrl.core.node import UnsoundError
from flowrl.nodes.envs.wrappers.wrapper import Wrapper


class TimeLimit(Wrapper):
    """Episodes are truncated after so many steps of what is inside this wrapper."""

    of_agents = False

    class Config(Wrapper.Config):
        steps: int = param(..., "steps of the longest episode", ge=1)

    def wrap(self, env: Any) -> Any:
        """The env with shorter episodes."""
        from gymnasium.wrappers import TimeLimit

        return TimeLimit(env, self.config.steps)


class NoopStart(Wrapper):
    """Episodes begin after some steps without effect (Mnih et al. 2015): each elsewhere."""

    of_agents = False

    class Config(Wrapper.Config):
        most: int = param(30, "steps at most; their number is drawn from 1 on", ge=1)
        action: int = param(0, "the action without effect", ge=0)

    def wrap(self, env: Any) -> Any:
        """The env with later beginnings."""
        _needs_action(env, self.config.action, "noop_start")
        from flowrl.nodes.envs.wrapped.episodes import NoopStartEnv

        return NoopStartEnv(env, self.config.most, self.config.action)


class FireOnReset(Wrapper):
    """Presses the start button of games that wait for it."""

    of_agents = False

    class Config(Wrapper.Config):
        action: int = param(1, "the button", ge=0)

    def wrap(self, env: Any) -> Any:
        """The env, with the button pressed."""
        _needs_action(env, self.config.action, "fire_on_reset")
        from flowrl.nodes.envs.wrapped.episodes import FireOnResetEnv

        return FireOnResetEnv(env, self.config.action)


class EpisodicLife(Wrapper):
    """To whoever learns, the loss of a life is final; the game goes on in the next episode.

    Returns are then of a life. Evaluate without it (`only: collect`): of whole games.
    """

    across_episodes = True
    of_agents = False

    class Config(Wrapper.Config):
        action: int = param(0, "what is done to begin the next life", ge=0)

    def wrap(self, env: Any) -> Any:
        """The env in lives."""
        _needs_action(env, self.config.action, "episodic_life")
        from flowrl.nodes.envs.wrapped.episodes import EpisodicLifeEnv

        return EpisodicLifeEnv(env, self.config.action)


def _needs_action(env: Any, action: int, who: str) -> None:
    n = getattr(env.action_space, "n", None)
    if n is None or action >= n:
        what = f"{who}: the env takes {env.action_space}, and the action is {action}"
        raise UnsoundError(what, "give another `action`, or leave the wrapper out", "env")
