"""The results of steps: columns over all envs, or one env's timestep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowrl.core.batch import Array


class Episode(NamedTuple):
    """A finished episode."""

    env_id: int
    total: float  # the sum of its rewards, not discounted
    length: int  # in steps


class Steps(NamedTuple):
    """One step of B envs. Nobody writes to these arrays again."""

    obs: Array  # (B, …) to act on next: of a new episode where one ended
    reward: Array  # (B,) float32
    terminated: Array  # (B,) bool: the state that was reached is final
    truncated: Array  # (B,) bool: the episode was cut off in a state that is not final
    next_obs: Array  # (B, …) what the action led to: the last observation of an episode that ended
    episodes: list[Episode]
    # Rows whose env failed and was restarted. Only their `obs` is valid; the unfinished trajectory is not.
    failed: Sequence[int] = ()
    # Rows of agents that did not act. Only their `obs` is valid, if the agent is active next.
    absent: Sequence[int] | Array = ()


COLUMNS = ("obs", "reward", "terminated", "truncated", "next_obs")  # of Steps


class Timestep(NamedTuple):
    """One step of one env, for use without the engine."""

    obs: Array
    reward: float
    terminated: bool
    truncated: bool
    episode: Episode | None  # where it ended
    failed: bool = False  # invalid: the env failed and was restarted
    absent: bool = False  # invalid: the agent did not act

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """The metrics of some episodes. (Plain Python: for a few numbers it is faster than numpy.)"""
    totals, count = [episode.total for episode in episodes], len(episodes)
    mean = sum(totals) / count
    return {
        "return_mean": mean,
        "return_std": (sum((total - mean) ** 2 for total in totals) / count) ** 0.5,
        "return_min": min(totals),
        "return_max": max(totals),
        "length_mean": sum(episode.length for episode in episodes) / count,
    }
