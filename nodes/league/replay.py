"""Plays matches again, from their seeds and the weights of their players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.state import State
from flowrl.nodes.collectors.match_collector import MatchCollector
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.league.matches import Assignment, Version, matches_state


class GivenSeeds(EpisodeStatistics):
    """The episodes of one env with these seeds, in order; further ones repeat them."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(1, 0, True)
        self._given = list(seeds)

    def next_seed(self, index: int, ahead: int = 0) -> int:
        return self._given[(self._started[index] + ahead) % len(self._given)]


def replay_matches(
    env: Any,
    config: Any,
    matches: Sequence[tuple[Assignment, int]],
    weights: State | None,
    opponents: Mapping[Version, State],
    players: Sequence[str] = ("main",),
) -> Batch:
    """Play matches, each with its seed, in an env; return their results.

    `config` is that of the collector that played them, `weights` are those of its player, and `opponents` those of the
    opponents, by number and version. `players` are the names of all that learn, by number.
    """
    envs = SerialEnvManager(env=env, count=1)
    envs.statistics = GivenSeeds([seed for _, seed in matches])
    try:
        collector = MatchCollector(config=config, envs=envs)
        table = [assignment for assignment, _ in matches]
        own = config.player or players[0]
        tables = {name: table if name == own else [] for name in players}
        state = matches_state(tables, opponents)
        return collector.play(len(matches), weights, state)
    finally:
        envs.close()
