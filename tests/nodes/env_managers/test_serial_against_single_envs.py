"""The serial env manager against envs that are stepped one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.envs.steps import Episode
from tests.nodes.toy_envs import CountingEnv
from tests.quick_selection import examples


def manager(count: int, seed: int, **kwargs: Any) -> SerialEnvManager:
    part = Gymnasium(id="tests.nodes.toy_envs:CountingEnv", kwargs=kwargs)
    return SerialEnvManager(env=part, count=count, seed=seed)


class SingleEnv:
    """One env that begins its next episode by itself, with the seeds of the manager."""

    def __init__(self, env_id: int, seeds: list[int]) -> None:
        self.env, self.env_id, self.seeds = CountingEnv(), env_id, iter(seeds)
        self.total, self.length = 0.0, 0
        self.obs = self.env.reset(seed=next(self.seeds))[0]

    def step(self) -> tuple[Any, float, bool, bool, Any, Any]:
        """A row of `Steps`, and the episode if it ended."""
        next_obs, reward, final, cut, _ = self.env.step(np.int64(0))
        self.total, self.length, episode = self.total + reward, self.length + 1, None
        self.obs = next_obs
        if final or cut:
            episode = Episode(self.env_id, self.total, self.length)
            self.total, self.length = 0.0, 0
            self.obs = self.env.reset(seed=next(self.seeds))[0]
        return self.obs, reward, final, cut, next_obs, episode


subsets = st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=25)


@examples(60)
@given(st.integers(0, 2**40), subsets)
def test_envs_step_independently_of_each_other(seed: int, turns: list[set[int]]) -> None:
    envs = manager(4, seed)
    first = envs.reset()
    received = [
        envs.advance(np.zeros(len(turn), np.int64), None if len(turn) == 4 else sorted(turn))
        for turn in turns
    ]
    singles = [SingleEnv(i, env.seeds) for i, env in enumerate(envs.local_envs.envs)]
    np.testing.assert_array_equal(first, [single.obs for single in singles])
    for turn, steps in zip(turns, received, strict=True):
        rows = [singles[i].step() for i in sorted(turn)]
        for array, expected in zip(steps[:5], zip(*rows, strict=True), strict=False):
            np.testing.assert_array_equal(array, expected)
        assert steps.episodes == [row[5] for row in rows if row[5]]


@pytest.mark.slow
@examples(60)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**40), st.data())
def test_every_launched_env_plays_its_quota_in_any_order_of_steps(
    count: int, quota: int, seed: int, data: st.DataObject
) -> None:
    envs = manager(count, seed)
    envs.launch(quota)
    episodes: list[Any] = []
    while not envs.done:
        waiting = envs.ready_obs
        chosen = data.draw(st.sets(st.sampled_from(sorted(waiting)), min_size=1))
        steps = envs.step(dict.fromkeys(chosen, 0))
        assert set(steps) == chosen
        for i in chosen:
            assert steps[i].obs[1] == waiting[i][1] + 1  # the next step of the same episode
            assert steps[i].done is (steps[i].episode is not None)
        for i in set(waiting) - chosen:
            np.testing.assert_array_equal(envs.ready_obs[i], waiting[i])
        episodes += [step.episode for step in steps.values() if step.episode]
    assert envs.ready_obs == {}
    played = [sum(episode.env_id == i for episode in episodes) for i in range(count)]
    assert played == [quota] * count
    for episode in episodes:
        assert episode.total == episode.length * (episode.length + 1) / 2


@examples(30)
@given(st.integers(1, 5), st.integers(0, 2**40), st.integers(0, 20))
def test_fixed_seeds_play_the_same_episodes_after_every_reset(
    count: int, seed: int, steps: int
) -> None:
    envs = manager(count, 0)
    envs.seed(seed, dynamic_seeds=False)

    def play() -> list[Any]:
        found = [envs.reset()]
        for _ in range(steps):
            found += envs.advance(np.zeros(count, np.int64))[:5]
        return found

    for one, other in zip(play(), play(), strict=True):
        np.testing.assert_array_equal(one, other)


@examples(30)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**40))
def test_more_envs_do_not_change_the_episodes_of_the_first_ones(
    few: int, more: int, seed: int
) -> None:
    a, b = manager(few, seed), manager(few + more, seed)
    np.testing.assert_array_equal(a.reset(), b.reset()[:few])
    for _ in range(12):
        one, other = (envs.advance(np.zeros(envs.spec().count, np.int64)) for envs in (a, b))
        for x, y in zip(one[:5], other[:5], strict=True):
            np.testing.assert_array_equal(x, y[:few])
        assert one.episodes == [episode for episode in other.episodes if episode.env_id < few]
