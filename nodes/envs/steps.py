"""The results of steps: columns over all envs, or one env's timestep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowrl.core.batch import Array

NO_INFO: Mapping[str, float] = {}
NO_INFO_COLUMNS: Mapping[str, Array] = {}


class Episode(NamedTuple):
    """What is known of an episode once it has ended."""

    env_id: int
    total: float  # the sum of its rewards, not discounted
    length: int  # in steps
    info: Mapping[str, float] = NO_INFO  # the listed numbers in the info of its last step


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
    # Rows of agents that completed no step. Only their `obs` is valid, if the agent is active next.
    absent: Sequence[int] | Array = ()
    info: Mapping[str, Array] = NO_INFO_COLUMNS  # (B, …) the listed entries of `info`
    # (B,) bool: whose action was taken, if agents act in turn. Then a row that is not absent completes the step that
    # its agent began with its last action, now or earlier. None: rows that are not absent acted in this step.
    acted: Array | None = None


COLUMNS = ("obs", "reward", "terminated", "truncated", "next_obs")  # of Steps


class Timestep(NamedTuple):
    """One step of one env, for use without the engine."""

    obs: Array
    reward: float
    terminated: bool
    truncated: bool
    episode: Episode | None  # where it ended
    failed: bool = False  # invalid: the env failed and was restarted
    absent: bool = False  # invalid: the agent completed no step
    info: Mapping[str, Array] = NO_INFO_COLUMNS  # the listed entries of `info`

    @property
    def done(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


def with_last_info(steps: Steps, ids: Array | None) -> list[Episode]:
    """The episodes that ended with these steps, each with the numbers in the info of its last step.

    `ids` says whose steps these are (None: all, in order).
    """
    numbers = {name: values for name, values in steps.info.items() if values.ndim == 1}
    rows = {} if ids is None else {int(one): k for k, one in enumerate(ids)}
    return [
        episode._replace(
            info={
                name: float(values[rows.get(episode.env_id, episode.env_id)])
                for name, values in numbers.items()
            }
        )
        for episode in steps.episodes
    ]


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """The metrics of some episodes. (Plain Python: for a few numbers it is faster than numpy.)"""
    totals, count = [episode.total for episode in episodes], len(episodes)
    mean = sum(totals) / count
    of_info = {
        f"info/{name}": sum(episode.info[name] for episode in episodes) / count
        for name in episodes[0].info
    }
    return {
        **of_info,
        "return_mean": mean,
        "return_std": (sum((total - mean) ** 2 for total in totals) / count) ** 0.5,
        "return_min": min(totals),
        "return_max": max(totals),
        "length_mean": sum(episode.length for episode in episodes) / count,
    }
