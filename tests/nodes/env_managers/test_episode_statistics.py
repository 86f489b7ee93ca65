"""What is known of each env's episode."""

from __future__ import annotations

import numpy as np

from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics


def stepped() -> EpisodeStatistics:
    """Three envs, of which the first began one step later than the others."""
    accounts = EpisodeStatistics(3, 0, True)
    for index in range(3):
        accounts.begin(index)
    accounts.count_steps(None, np.array([1.0, 2.0, 4.0]))
    accounts.begin(0)
    accounts.count_steps(None, np.array([0.5, 0.25, 0.125]))
    return accounts


def test_episodes_that_end_together_are_told_as_if_each_ended_alone() -> None:
    together = stepped().end_several(np.array([0, 2]))
    assert together == [(0, 0.5, 1), (2, 4.125, 2)]
    alone = stepped()
    assert together == [alone.end(0), alone.end(2)]


def test_none_ends_where_none_is_named() -> None:
    assert stepped().end_several(np.zeros(0, np.int64)) == []
