"""Playing a fixed number of episodes on each env, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowrl.nodes.collectors.acting import Acting, Taken
from flowrl.nodes.collectors.episodes import all_at_once, quotas
from flowrl.nodes.collectors.episodes import play as play_on
from flowrl.nodes.envs.base_env_manager import BaseEnvManager
from flowrl.nodes.envs.steps import Episode, episode_metrics
from flowrl.nodes.policies.policy import AnyActMode


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes that were played, sorted by env and then in the order of time."""

    episodes: Sequence[Episode]
    stop: bool = False  # the goal is reached, and was confirmed

    @property
    def return_mean(self) -> float:
        """The mean return."""
        return self.metrics()["return_mean"]

    def metrics(self) -> dict[str, float]:
        """The episodes in numbers."""
        totals = sorted(episode.total for episode in self.episodes)
        return {**episode_metrics(self.episodes), "return_median": float(np.median(totals))}


def play(
    envs: BaseEnvManager,
    mode: AnyActMode,
    episodes: int,
    steps: list[Taken] | None = None,
    most_steps: int = 100_000,
) -> list[Episode]:
    """Play every env's quota of episodes, from new ones on; `steps`, if given, collects them."""
    acting = Acting(envs, {})
    acting.let(mode)
    acting.begin()
    played: list[Episode] = []
    for taken in play_on(all_at_once(acting), quotas(episodes, acting.count), most_steps):
        played += taken.episodes
        if steps is not None:
            steps.append(taken)
    return sorted(played, key=lambda episode: episode.env_id)
