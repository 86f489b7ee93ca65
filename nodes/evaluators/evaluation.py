"""Plays a fixed number of episodes with a policy, and computes statistics of their returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from flowrl.core.statistics import confidence_interval, interquartile_mean
from flowrl.nodes.collectors.actor import Actor, CollectedSteps
from flowrl.nodes.collectors.episodes import episode_quotas, play_quotas, step_together
from flowrl.nodes.collectors.joined_managers import join_managers
from flowrl.nodes.envs.steps import Episode, episode_metrics
from flowrl.nodes.policy import AnyActMode

Average = Literal["mean", "win_rate", "per_step"]
RETURN = "return"  # the default of what is measured of an episode


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes that were played, sorted by env and then by time."""

    episodes: Sequence[Episode]
    stop: bool = False  # whether the goal is reached and confirmed
    win_above: float | None = None  # an episode with a higher measure is won
    metric: str = RETURN  # what is measured of an episode: its return, or an entry of its last info

    @property
    def returns(self) -> list[float]:
        return [episode.total for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        return [episode.length for episode in self.episodes]

    @property
    def measures(self) -> list[float]:
        """Of each episode, its return or the entry of its last info."""
        if self.metric == RETURN:
            return self.returns
        return [episode.info[self.metric] for episode in self.episodes]

    @property
    def return_mean(self) -> float:
        return sum(self.returns) / len(self.returns)

    def average(self, name: Average) -> float:
        """The mean measure of an episode, the share of won episodes, or the mean reward of a step."""
        measures = self.measures
        if name == "mean":
            return sum(measures) / len(measures)
        if name == "per_step":
            return sum(measures) / sum(self.lengths)
        if name != "win_rate":
            raise ValueError(f"there is no average '{name}'; known: {', '.join(get_args(Average))}")
        if self.win_above is None:
            raise ValueError(
                "a win rate needs `win_above`, the return or `metric` above which an episode is won"
            )
        return sum(measure > self.win_above for measure in measures) / len(measures)

    def metrics(self, rng: np.random.Generator | None = None) -> dict[str, float]:
        """The statistics of the episodes; with `rng`, also a confidence interval."""
        returns, lengths = np.array(self.returns), np.array(self.lengths)
        metrics = {
            **episode_metrics(self.episodes),
            "return_median": float(np.median(returns)),
            "return_iqm": float(interquartile_mean(returns)),
            "return_per_step": float(returns.sum() / lengths.sum()),
            "length_min": float(lengths.min()),
            "length_max": float(lengths.max()),
        }
        if self.win_above is not None:
            metrics["win_rate"] = self.average("win_rate")
        if rng is not None:
            low, high = confidence_interval(returns, rng)
            metrics.update(return_iqm_low=low, return_iqm_high=high)
        return metrics


def metric_names(numbers: Sequence[str], win_above: float | None) -> list[str]:
    """The names of an evaluation's metrics, if these numbers of `info` are listed."""
    example = Episode(0, 0.0, 1, info=dict.fromkeys(numbers, 0.0))
    return list(Evaluation([example], win_above=win_above).metrics(np.random.default_rng(0)))


def play_episodes(
    envs: Any,
    mode: AnyActMode,
    episodes: int,
    steps: list[CollectedSteps] | None = None,
    most_steps: int = 100_000,
) -> list[Episode]:
    """Play new episodes, spread evenly over the envs; append their steps to `steps`, if given."""
    rows = join_managers(envs)
    actor = Actor(rows, {})
    actor.set_mode(mode, {"action": rows.spec().action})
    actor.reset()
    played: list[Episode] = []
    quotas = episode_quotas(episodes, actor.count)
    together = rows.spec().together
    for collected in play_quotas(step_together(actor), quotas, most_steps, together):
        played += collected.episodes
        if steps is not None:
            steps.append(collected)
    return sorted(played, key=lambda episode: episode.env_id)
