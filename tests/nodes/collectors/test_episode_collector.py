"""The episode collector: quotas, rows, failures, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Batch
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.episodes import episode_quotas
from flowrl.nodes.env_managers.vector_env_manager import VectorEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from tests.nodes.collectors.recurrent_toy_policy import StepCountingPolicy
from tests.nodes.scripted_envs import ScriptedEnvs
from tests.nodes.toy_policies import Toy, weights

LENGTHS = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=4)


def collector(
    envs: Any, n_episode: int, nstep: int = 1, policy: type = Toy, **params: Any
) -> EpisodeCollector:
    spec = envs.spec()
    more = {"unroll_steps": None} if policy is StepCountingPolicy else {}
    made = policy(obs=spec.obs, action=spec.action, nstep=nstep, **more)
    return EpisodeCollector(envs=envs, policy=made, n_episode=n_episode, **params)


def episodes_of(batch: Batch) -> list[Batch]:
    begins = np.flatnonzero(batch["offset"] == 0)
    return [
        batch.take(slice(*span)) for span in zip(begins, [*begins[1:], len(batch)], strict=True)
    ]


def test_a_token_has_the_described_columns() -> None:
    envs = ScriptedEnvs([[3], [5]])
    node = collector(envs, 4)
    known = Surroundings({}, {"envs": envs.spec()}, frozenset({"data"}))
    facts = EpisodeCollector.describe(node.config, known)
    batch = node.fire(weights(0))
    assert facts.outs["data"] == dict(batch.schema)
    assert facts.env_steps is None
    assert len(batch) == 16
    assert node.ctx.take_count() == (16, 4, 0)


def test_offsets_count_the_rows_of_an_episode_and_last_marks_its_end() -> None:
    batch = collector(ScriptedEnvs([[3], [2]]), 3).fire(weights(0))
    assert batch["offset"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert batch["obs"][:, 2].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert batch["last"].tolist() == batch["terminated"].tolist()
    assert batch["last"].tolist() == [False, False, True] * 2 + [False, True]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    LENGTHS, st.integers(1, 9), st.integers(1, 3), st.sampled_from(["together", "ready"]), st.data()
)
def test_every_env_plays_its_quota_of_complete_episodes(
    lengths: list[list[int]], n: int, nstep: int, stepping: str, data: st.DataObject
) -> None:
    pairs = st.tuples(st.integers(0, len(lengths) - 1), st.integers(0, 4))
    fails = data.draw(st.dictionaries(pairs, st.integers(1, 7), max_size=4))
    envs = ScriptedEnvs(lengths, fails)
    node = collector(envs, n, nstep, policy=StepCountingPolicy, stepping=stepping)
    played = np.zeros(len(lengths), int)
    seen: set[tuple[float, ...]] = set()
    for turn in range(4):
        before, token = envs.steps, node.fire(weights(0))
        episodes = episodes_of(token)
        assert len(episodes) == n == node.ctx.take_count().episodes
        envs_of_episodes = [int(e["obs"][0, 0]) for e in episodes]
        assert envs_of_episodes == sorted(envs_of_episodes)
        quota = np.bincount(envs_of_episodes, minlength=len(lengths))
        assert quota.tolist() == episode_quotas(n, len(lengths), turn * n % len(lengths)).tolist()
        played += quota
        assert played.max() - played.min() <= 1
        for e in episodes:
            env, number = int(e["obs"][0, 0]), int(e["obs"][0, 1])
            length = lengths[env][number % len(lengths[env])]
            assert e["obs"].tolist() == [[env, number, t] for t in range(length)]
            assert e["offset"].tolist() == e["logp"].tolist() == [*range(length)]
            assert e["next_obs"][:, 2].tolist() == [*range(1, length + 1)]
            assert e["terminated"].tolist() == [t == length for t in range(1, length + 1)]
            assert fails.get((env, number), length + 1) > length
            assert (env, number) not in seen
            seen.add((env, number))
        if not fails:
            assert envs.steps - before == len(token)  # no step beyond the token


def test_all_steps_of_a_token_are_acted_with_the_same_weights() -> None:
    node = collector(ScriptedEnvs([[3], [8]]), 4)
    assert [set(node.fire(weights(w))["action"]) for w in (1, 2, 3)] == [{1}, {2}, {0}]


def test_an_env_that_has_played_its_quota_waits_for_the_others() -> None:
    envs = ScriptedEnvs([[2], [5]])
    collector(envs, 2).fire(weights(0))
    assert envs.served == [2, 2, 1, 1, 1]


def test_failed_episodes_are_replaced_and_their_steps_counted_as_dropped() -> None:
    envs = ScriptedEnvs([[3], [3]], fails={(0, 0): 3, (1, 1): 1})
    node = collector(envs, 4, log_every_steps=1)
    batch = node.fire(weights(0))
    assert [e["obs"][0].tolist() for e in episodes_of(batch)] == [
        [0, 1, 0],
        [0, 2, 0],
        [1, 0, 0],
        [1, 2, 0],
    ]
    assert node.ctx.records[-1].values["dropped_steps"] == 4


def test_collect_returns_a_batch_for_each_episode() -> None:
    node = collector(ScriptedEnvs([[3], [2]]), 8)
    episodes = node.collect(n_episode=3)
    assert [len(e) for e in episodes] == [3, 3, 2]
    assert node.envstep == 8


def test_an_endless_episode_is_an_error() -> None:
    node = collector(ScriptedEnvs([[3], [50]]), 4, most_steps=20)
    with pytest.raises(ValueError, match="env 1: an episode has not ended after 20 steps"):
        node.fire(weights(0))


def test_unsuitable_policies_and_parameters_are_refused() -> None:
    envs = ScriptedEnvs([[3]])
    spec = envs.spec()
    policy = StepCountingPolicy(obs=spec.obs, action=spec.action)
    with pytest.raises(
        UnsoundError, match=r"StepCountingPolicy learns from unrolls.*sample_collector"
    ):
        EpisodeCollector(envs=envs, policy=policy)
    with pytest.raises(UnsoundError, match="`least` is for"):
        collector(envs, 2, least=2)


def test_the_envs_of_a_pool_play_their_quotas() -> None:
    """They step together, so one that has played its quota goes on, and its rows are dropped."""
    env = Gymnasium(id="CartPole-v1", max_episode_steps=12)
    envs = VectorEnvManager(env=env, count=3)
    node = collector(envs, 4)
    for _ in range(2):
        episodes = episodes_of(node.fire(weights(1)))
        assert len(episodes) == 4
        for episode in episodes:
            assert episode["last"].tolist() == [False] * (len(episode) - 1) + [True]
            assert (episode["obs"][1:] == episode["next_obs"][:-1]).all()
            assert len(episode) > 4
    envs.close()
