"""What stepping envs gives: columns over all envs, or one env's timestep."""

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
    """What one step of B envs gave; nobody writes to these arrays again."""

    obs: Array  # (B, …) to act on next: of a new episode where one ended
    reward: Array  # (B,) float32
    terminated: Array  # (B,) bool: the state that was reached is final
    truncated: Array  # (B,) bool: cut off, though the state is not final
    next_obs: (
        Array  # (B, …) what the action led to: the true last observation where an episode ended
    )
    episodes: list[Episode]
    failed: Sequence[int] = ()
    # ^ rows whose env failed and was begun anew: their transition is void, and so is all that the
    # env's unfinished trajectory holds; only their `obs` counts
    absent: Sequence[int] | Array = ()
    # ^ rows of agents that did not play: only their `obs` counts, where an agent has come meanwhile


COLUMNS = ("obs", "reward", "terminated", "truncated", "next_obs")  # of Steps


class Timestep(NamedTuple):
    """What one step of one env gave, for use by hand."""

    obs: Array
    reward: float
    terminated: bool
    truncated: bool
    episode: Episode | None  # where it ended
    failed: bool = False  # void: the env failed and was begun anew
    absent: bool = False  # void: no agent played here

    @property
    def done(self) -> bool:
        """Whether the episode is over, for whichever reason."""
        return self.terminated or self.truncated


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """What is told of some episodes (plain Python: for a few numbers, faster than numpy)."""
    totals, count = [episode.total for episode in episodes], len(episodes)
    mean = sum(totals) / count
    return {
        "return_mean": mean,
        "return_std": (sum((total - mean) ** 2 for total in totals) / count) ** 0.5,
        "return_min": min(totals),
        "return_max": max(totals),
        "length_mean": sum(episode.length for episode in episodes) / count,
    }
