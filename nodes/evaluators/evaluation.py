"""Playing a fixed number of episodes on each env, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from flowrl.nodes.collectors.acting import Acting, Taken
from flowrl.nodes.collectors.episodes import all_at_once, quotas
from flowrl.nodes.collectors.episodes import play as play_on
from flowrl.nodes.envs.agent_rows import as_agent_rows
from flowrl.nodes.envs.steps import Episode, episode_metrics
from flowrl.nodes.evaluators.averages import confidence_interval, interquartile_mean
from flowrl.nodes.policy import AnyActMode

Average = Literal["return_mean", "win_rate", "return_per_step"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes that were played, sorted by env and then in the order of time."""

    episodes: Sequence[Episode]
    stop: bool = False  # the goal is reached, and was confirmed
    win_above: float | None = None  # an episode with a return above it is won

    @property
    def returns(self) -> list[float]:
        """Each episode's return."""
        return [episode.total for episode in self.episodes]

    @property
    def lengths(self) -> list[int]:
        """Each episode's steps."""
        return [episode.length for episode in self.episodes]

    @property
    def return_mean(self) -> float:
        """The mean return."""
        return self.average("return_mean")

    def average(self, name: Average) -> float:
        """One of the three averages: of returns, of wins, or of rewards."""
        if name == "win_rate" and self.win_above is None:
            raise ValueError("a win rate needs `win_above`, the return above which one has won")
        found = self.metrics()
        if name not in found:
            raise ValueError(f"there is no average '{name}'; known: {', '.join(get_args(Average))}")
        return found[name]

    def metrics(self, rng: np.random.Generator | None = None) -> dict[str, float]:
        """The episodes in numbers; with a generator, also how sure their middle is."""
        totals, lengths = np.array(self.returns), np.array(self.lengths)
        found = {
            **episode_metrics(self.episodes),
            "return_median": float(np.median(totals)),
            "return_iqm": float(interquartile_mean(totals)),
            "return_per_step": float(totals.sum() / lengths.sum()),
            "length_min": float(lengths.min()),
            "length_max": float(lengths.max()),
        }
        if self.win_above is not None:
            found["win_rate"] = float((totals > self.win_above).mean())
        if rng is not None:
            low, high = confidence_interval(totals, rng)
            found.update(return_iqm_low=low, return_iqm_high=high)
        return found


def play(
    envs: Any,
    mode: AnyActMode,
    episodes: int,
    steps: list[Taken] | None = None,
    most_steps: int = 100_000,
) -> list[Episode]:
    """Play every env's quota of episodes, from new ones on; `steps`, if given, collects them."""
    rows = as_agent_rows(envs)
    acting = Acting(rows, {})
    acting.let(mode, {"action": rows.spec().action})
    acting.begin()
    played: list[Episode] = []
    left = quotas(episodes, acting.count)
    for taken in play_on(all_at_once(acting), left, most_steps, rows.spec().agents):
        played += taken.episodes
        if steps is not None:
            steps.append(taken)
    return sorted(played, key=lambda episode: episode.env_id)
