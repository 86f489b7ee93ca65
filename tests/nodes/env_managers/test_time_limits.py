"""The serial env manager counts time limits itself, with the same results as the wrapper `TimeLimit`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.env_managers.time_limits import TimeLimits
from flowrl.nodes.envs.gymnasium import Gymnasium

LIMIT = 5


def manager(id: str = "CartPole-v1", count: int = 3, **params: Any) -> SerialEnvManager:
    return SerialEnvManager(env=Gymnasium(id=id, max_episode_steps=LIMIT, **params), count=count)


def zeros(count: int) -> Any:
    return np.zeros(count, np.int64)


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_episode_is_truncated_at_its_limit(wrapped: bool) -> None:
    from flowrl.nodes.envs.wrappers.rewards import RewardClip

    envs = manager(wrappers=[RewardClip()] if wrapped else [])
    envs.reset()
    cuts = [envs.advance(zeros(3)).truncated.tolist() for _ in range(2 * LIMIT)]
    assert cuts == ([[False] * 3] * (LIMIT - 1) + [[True] * 3]) * 2


def test_envs_that_are_stepped_separately_reach_their_limits_separately() -> None:
    envs = manager()
    envs.reset()
    ended = []
    for k in range(60):
        ids = [[0, 1, 2], [2], [1, 0], [0, 1, 2]][k % 4]
        steps = envs.advance(zeros(len(ids)), ids)
        assert [e.env_id for e in steps.episodes] == [ids[r] for r in steps.truncated.nonzero()[0]]
        ended += steps.episodes
    assert {episode.length for episode in ended} == {LIMIT}
    assert len(ended) == 3 * 45 // LIMIT


def test_an_env_that_terminates_at_its_limit_is_both_terminated_and_truncated() -> None:
    always_left = zeros(1)
    single = gymnasium.make("CartPole-v1")
    envs = SerialEnvManager(env=Gymnasium(id="CartPole-v1"), count=1, seed=1)
    obs = envs.reset()
    seed = envs.statistics.seeds[0]
    first, _ = single.reset(seed=seed)
    assert obs[0].tolist() == first.tolist()
    steps = 1
    while not single.step(0)[2]:
        steps += 1
    limited = SerialEnvManager(
        env=Gymnasium(id="CartPole-v1", max_episode_steps=steps), count=1, seed=1
    )
    limited.reset()
    last = [limited.advance(always_left) for _ in range(steps)][-1]
    assert (last.terminated.tolist(), last.truncated.tolist()) == ([True], [True])


def test_only_gymnasiums_own_wrapper_is_removed() -> None:
    class CustomTimeLimit(gymnasium.wrappers.TimeLimit):
        pass

    limits, bare = TimeLimits(2), gymnasium.make("CartPole-v1").unwrapped
    custom = CustomTimeLimit(bare, 3)
    assert limits.remove_wrapper(0, custom) is custom
    assert limits.remove_wrapper(1, gymnasium.wrappers.TimeLimit(bare, 3)) is bare
    statistics = EpisodeStatistics(2, 0, True)
    found = []
    for _ in range(4):
        found.append(list(limits.rows_at_limit(statistics, None)))
        statistics.count_steps(None, np.ones(2))
    assert found == [[], [], [1], [1]]


def test_a_registered_env_has_no_order_checking_wrapper() -> None:
    env = Gymnasium(id="CartPole-v1").make(0)
    assert "OrderEnforcing" not in str(env)
    assert env.spec.max_episode_steps == 500
