"""The returns and lengths of episodes."""

from __future__ import annotations

import numpy as np

from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.envs.steps import Episode


def statistics_of_three_envs() -> EpisodeStatistics:
    """The first env's episode began one step after the others."""
    statistics = EpisodeStatistics(3, 0, True)
    for index in range(3):
        statistics.start_episode(index)
    statistics.count_steps(None, np.array([1.0, 2.0, 4.0]))
    statistics.start_episode(0)
    statistics.count_steps(None, np.array([0.5, 0.25, 0.125]))
    return statistics


def test_several_finished_episodes_are_the_same_as_one_by_one() -> None:
    together = statistics_of_three_envs().finished_episodes(np.array([0, 2]))
    assert together == [Episode(0, 0.5, 1), Episode(2, 4.125, 2)]
    single = statistics_of_three_envs()
    assert together == [single.finished_episode(0), single.finished_episode(2)]


def test_without_envs_there_are_no_finished_episodes() -> None:
    assert statistics_of_three_envs().finished_episodes(np.zeros(0, np.int64)) == []
