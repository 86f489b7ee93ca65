"""Time limits of registered envs: the base kind counts them itself, and nobody sees a difference."""

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


@pytest.mark.parametrize("wrappers", [[], ["own"]])
def test_an_episode_is_truncated_at_its_limit(wrappers: list[Any]) -> None:
    from flowrl.nodes.envs.wrappers.rewards import RewardClip

    envs = manager(wrappers=[RewardClip() for _ in wrappers])
    envs.reset()
    cuts = [envs.advance(zeros(3)).truncated.tolist() for _ in range(2 * LIMIT)]
    assert cuts == ([[False] * 3] * (LIMIT - 1) + [[True] * 3]) * 2


def test_envs_that_are_stepped_apart_come_to_their_limits_apart() -> None:
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


def test_an_env_that_ends_by_itself_at_its_limit_has_terminated_and_is_truncated() -> None:
    always_left = zeros(1)
    alone = gymnasium.make("CartPole-v1")
    envs = SerialEnvManager(env=Gymnasium(id="CartPole-v1"), count=1, seed=1)
    obs = envs.reset()
    seed = envs._accounts.seeds[0]
    first, _ = alone.reset(seed=seed)
    assert obs[0].tolist() == first.tolist()
    steps = 1
    while not alone.step(0)[2]:
        steps += 1
    limited = SerialEnvManager(
        env=Gymnasium(id="CartPole-v1", max_episode_steps=steps), count=1, seed=1
    )
    limited.reset()
    last = [limited.advance(always_left) for _ in range(steps)][-1]
    assert (last.terminated.tolist(), last.truncated.tolist()) == ([True], [True])


def test_only_gymnasiums_own_limit_is_taken_over() -> None:
    class Mine(gymnasium.wrappers.TimeLimit):
        pass

    limits, bare = TimeLimits(2), gymnasium.make("CartPole-v1").unwrapped
    mine = Mine(bare, 3)
    assert limits.stepped(0, mine) is mine
    assert limits.stepped(1, gymnasium.wrappers.TimeLimit(bare, 3)) is bare
    accounts = EpisodeStatistics(2, 0, True)
    found = []
    for _ in range(4):
        found.append(list(limits.reached(accounts, None)))
        accounts.count_steps(None, np.ones(2))
    assert found == [[], [], [1], [1]]


def test_a_registered_env_has_no_wrapper_that_looks_for_a_reset() -> None:
    env = Gymnasium(id="CartPole-v1").make(0)
    assert "OrderEnforcing" not in str(env)
    assert env.spec.max_episode_steps == 500
