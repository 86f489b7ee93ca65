"""Unrolls of a fixed length, and the memory of a recurrent policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Column
from flowrl.core.config import PartSpec
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage.plan import make_deduplicator
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.configured_policies import policy_for_rows
from flowrl.nodes.policy import unroll_column
from tests.nodes.collectors.recurrent_toy_policy import StepCountingPolicy
from tests.nodes.scripted_envs import ScriptedEnvs
from tests.nodes.toy_policies import Toy, weights

LENGTHS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=4)


def collector(
    envs: Any, n_sample: int, stepping: str = "together", **params: Any
) -> SampleCollector:
    spec = envs.spec()
    policy = StepCountingPolicy(obs=spec.obs, action=spec.action, **params)
    return SampleCollector(envs=envs, policy=policy, n_sample=n_sample, stepping=stepping)


def known(envs: Any) -> Surroundings:
    return Surroundings({}, {"envs": envs.spec()}, frozenset({"data"}))


def test_a_row_is_an_unroll_with_the_described_columns() -> None:
    envs = ScriptedEnvs([[6]] * 2)
    node = collector(envs, n_sample=8, unroll_steps=4)
    facts = SampleCollector.describe(node.config, known(envs))
    batch = node.fire(weights(0))
    assert facts.outs["data"] == dict(batch.schema)
    assert facts.rows == {"data": 2} == {"data": len(batch)}
    assert facts.env_steps == 8 == node.ctx.take_count().env_steps
    assert batch["obs"].shape == (2, 4, 3)
    assert batch["memory"].shape == (2, 1)  # at the first step of each unroll


def test_unrolls_continue_across_the_ends_of_episodes() -> None:
    node = collector(ScriptedEnvs([[6]]), n_sample=4, unroll_steps=4)
    tokens = [node.fire(weights(0)) for _ in range(3)]
    assert [t["obs"][0, :, 2].tolist() for t in tokens] == [
        [0, 1, 2, 3],
        [4, 5, 0, 1],
        [2, 3, 4, 5],
    ]
    assert [t["memory"][0, 0] for t in tokens] == [0, 4, 2]
    assert [t["last"][0].tolist() for t in tokens] == [
        [False, False, False, True],
        [False, True, False, True],
        [False, False, False, True],
    ]
    assert tokens[1]["terminated"][0].tolist() == [False, True, False, False]


def test_burn_in_repeats_the_end_of_the_previous_unroll() -> None:
    node = collector(ScriptedEnvs([[20]]), n_sample=3, unroll_steps=5, burn_in_steps=2)
    tokens = [node.fire(weights(0)) for _ in range(3)]
    assert [t["obs"][0, :, 2].tolist() for t in tokens] == [
        [0, 1, 2, 3, 4],
        [3, 4, 5, 6, 7],
        [6, 7, 8, 9, 10],
    ]
    assert [t["memory"][0, 0] for t in tokens] == [0, 3, 6]
    assert node.ctx.take_count().env_steps == 9  # new steps only


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(
    LENGTHS,
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 3),
    st.sampled_from(["together", "ready"]),
    st.data(),
)
def test_unrolls_are_consecutive_and_each_is_returned_once(
    lengths: list[list[int]],
    pieces: int,
    length: int,
    burn_in: int,
    stepping: str,
    data: st.DataObject,
) -> None:
    burn_in = min(burn_in, length - 1)
    pairs = st.tuples(st.integers(0, len(lengths) - 1), st.integers(0, 3))
    fails = data.draw(st.dictionaries(pairs, st.integers(1, 6), max_size=3))
    envs = ScriptedEnvs(lengths, fails)
    n = pieces * (length - burn_in)
    node = collector(envs, n, stepping, unroll_steps=length, burn_in_steps=burn_in)
    seen: dict[float, list[tuple[float, ...]]] = {}
    for _ in range(4):
        batch = node.fire(weights(0))
        assert len(batch) == pieces
        assert batch["last"][:, -1].all()
        for k in range(pieces):
            steps = [tuple(s) for s in batch["obs"][k].tolist()]
            assert len({s[0] for s in steps}) == 1
            assert batch["memory"][k, 0] == steps[0][2]  # zero where an episode begins
            assert batch["logp"][k].tolist() == [s[2] for s in steps]
            before = seen.setdefault(steps[0][0], [])
            new = [s for s in steps if s not in before]
            assert steps == sorted(steps)
            if not fails:
                assert len(new) == length - (burn_in if before else 0)
                assert steps[: length - len(new)] == before[len(before) - (length - len(new)) :]
            before += new
    for env, steps in seen.items():
        assert steps == sorted(set(steps))
        if not fails:
            of_env = lengths[int(env)]
            episodes = range(int(steps[-1][1]) + 1)
            all_steps = [(env, k, t) for k in episodes for t in range(of_env[k % len(of_env)])]
            assert steps == all_steps[: len(steps)]


def test_the_memory_of_halves_equals_that_of_together() -> None:
    nodes = [
        collector(ScriptedEnvs([[3, 4], [5], [2, 6]]), n_sample=24, stepping=way)
        for way in ("together", "halves")
    ]
    for _ in range(3):
        first, second = (node.fire(weights(0)) for node in nodes)
        assert all(np.array_equal(first[name], second[name]) for name in first)


def test_a_policy_without_memory_can_act_for_a_recurrent_one() -> None:
    envs = ScriptedEnvs([[6]] * 2)
    node = collector(envs, n_sample=8)
    spec = envs.spec()
    node.reset_policy(Toy(obs=spec.obs, action=spec.action))
    batch = node.fire(weights(1))
    assert set(batch["action"].ravel()) == {1}
    assert batch["memory"].tolist() == [[0.0], [0.0]]
    node.reset_policy(node.policy)  # acting restarts with empty memory, also within episodes
    assert node.fire(weights(1))["logp"].tolist() == [[0, 1, 0, 1]] * 2


def test_a_buffer_stores_unrolls_as_rows() -> None:
    node = collector(ScriptedEnvs([[6]] * 2), n_sample=8)
    buffer = NaiveReplayBuffer(size=4, batch_size=3)
    for _ in range(3):
        buffer.push(node.fire(weights(0)))
    assert buffer.count == 4
    assert buffer.sample()["obs"].shape == (3, 4, 3)


def test_a_learner_derives_the_columns_of_a_step_from_unrolls() -> None:
    envs = ScriptedEnvs([[6]])
    node = collector(envs, n_sample=4)
    rows = SampleCollector.describe(node.config, known(envs)).outs["data"]
    spec = PartSpec("step_counting", StepCountingPolicy, StepCountingPolicy.Config())
    policy = policy_for_rows(spec, rows)
    assert (policy.obs, policy.action) == (envs.spec().obs, envs.spec().action)
    assert policy.action.n == 3


def test_a_number_of_steps_that_is_not_whole_unrolls_is_refused() -> None:
    envs = ScriptedEnvs([[6]])
    with pytest.raises(UnsoundError, match=r"10 env steps are not whole unrolls of 4 .*take 8"):
        collector(envs, n_sample=10)
    node = collector(envs, n_sample=8)
    with pytest.raises(ValueError, match="6 env steps are not whole unrolls"):
        node.collect(6)


def test_the_first_axis_of_an_unroll_is_time_and_not_stacked_frames() -> None:
    stacked = Column("uint8", (4, 8, 8), frames=4)
    assert unroll_column(stacked, 4).frames is None
    rows = {"obs": unroll_column(stacked, 4), "next_obs": unroll_column(stacked, 4)}
    # unlike steps, unrolls have no frames to store once
    assert make_deduplicator(NaiveReplayBuffer.Config(), rows) is None
    assert make_deduplicator(NaiveReplayBuffer.Config(), dict.fromkeys(rows, stacked)) is not None
