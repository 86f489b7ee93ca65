"""What stepping envs gives: columns over all envs, or one env's timestep."""

from __future__ import annotations

from typing import NamedTuple

from flowrl.batch import Array


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


class Timestep(NamedTuple):
    """What one step of one env gave, for use by hand."""

    obs: Array
    reward: float
    terminated: bool
    truncated: bool
    episode: Episode | None  # where it ended

    @property
    def done(self) -> bool:
        """Whether the episode is over, for whichever reason."""
        return self.terminated or self.truncated
