"""Sequences that continue from token to token, compared with sequences of uncut episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.core.batch import Batch
from flowrl.core.state import Clock, Count
from flowrl.nodes.buffers.episodes.sequences import sequence_windows
from flowrl.nodes.buffers.sequence_replay_buffer import SequenceReplayBuffer
from flowrl.nodes.buffers.storage.mapped import MappedStorage
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.origin import ENV_COLUMN, STEP_COLUMN
from tests.nodes.toy_policies import Toy, weights
from tests.quick_selection import examples

Sequence = tuple[tuple[int, int], ...]  # (env, step) of each valid step


def collector(envs: int, seed: int, length: int | None = None) -> SampleCollector:
    kwargs = {"length": length, "ends": "by seed"}
    manager = SerialEnvManager(
        env=Gymnasium(id="tests.nodes.toy_envs:CountingEnv", kwargs=kwargs), count=envs, seed=seed
    )
    spec = manager.spec()
    policy = Toy(obs=spec.obs, action=spec.action)
    return SampleCollector(envs=manager, policy=policy, seed=seed, origin=True)


def held(buffer: SequenceReplayBuffer) -> list[Sequence]:
    if not buffer.count:
        return []
    batch = buffer.sample(buffer.count)
    return sorted(
        tuple(zip(env[valid].tolist(), step[valid].tolist(), strict=True))
        for env, step, valid in zip(
            batch[ENV_COLUMN], batch[STEP_COLUMN], batch["valid"], strict=True
        )
    )


def expected(tokens: list[Batch], steps: int, period: int, size: int) -> list[Sequence]:
    """Cut the rows of each env at once. Of an episode that has not ended, only full regular windows count."""
    rows = Batch.concat(tokens)
    at = {
        (int(e), int(s)): k
        for k, (e, s) in enumerate(zip(rows[ENV_COLUMN], rows[STEP_COLUMN], strict=True))
    }
    found = []
    for env in sorted(set(rows[ENV_COLUMN].tolist())):
        mine = np.array([k for (e, _), k in sorted(at.items()) if e == env])
        done = (rows["terminated"] | rows["truncated"])[mine]
        firsts, lengths = sequence_windows(done, steps, period)
        begin = 0 if not done.any() else int(np.flatnonzero(done)[-1]) + 1
        for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True):
            unfinished = first >= begin
            if unfinished and (length < steps or (first - begin) % period):
                continue  # a last window, which exists only if the episode has ended
            if mine[first] >= len(rows) - size:
                found.append(
                    tuple((env, int(rows[STEP_COLUMN][mine[first + j]])) for j in range(length))
                )
    return sorted(found)


@pytest.mark.slow
@examples(60)
@given(
    envs=st.integers(1, 3),
    amounts=st.lists(st.integers(1, 17), min_size=1, max_size=8),
    steps=st.integers(1, 6),
    period=st.integers(1, 7),
    length=st.none() | st.integers(1, 15),
    seed=st.integers(0, 2**31),
    saved=st.booleans(),
)
def test_sequences_across_tokens_are_those_of_whole_episodes(
    envs: int,
    amounts: list[int],
    steps: int,
    period: int,
    length: int | None,
    seed: int,
    saved: bool,
) -> None:
    node, tokens = collector(envs, seed, length), []

    def make_buffer() -> SequenceReplayBuffer:
        return SequenceReplayBuffer(
            size=500, unroll_steps=steps, period_steps=period, replace=False
        )

    buffer = make_buffer()
    for n in amounts:
        tokens.append(node.collect(n))
        buffer.push(tokens[-1])
        if saved:
            state, buffer = buffer.state_dict(), make_buffer()
            buffer.load_state_dict(state)
    assert held(buffer) == expected(tokens, steps, period, 500)


@pytest.mark.slow
@examples(40)
@given(
    st.integers(1, 3), st.lists(st.integers(1, 17), min_size=3, max_size=9), st.integers(1, 5),
    st.integers(0, 2**31),
)  # fmt: skip
def test_no_sequence_crosses_the_wrap_around_of_the_ring(
    envs: int, amounts: list[int], steps: int, seed: int
) -> None:
    """The steps of each sequence follow each other, and all of them are held."""
    size = 23
    node, buffer = collector(envs, seed, 9), SequenceReplayBuffer(
        size=size, unroll_steps=steps, period_steps=2, replace=False
    )  # fmt: skip
    newest: list[tuple[int, int]] = []
    for n in amounts:
        token = node.collect(n)
        newest += zip(token[ENV_COLUMN].tolist(), token[STEP_COLUMN].tolist(), strict=True)
        buffer.push(token)
        for sequence in held(buffer):
            env, first = sequence[0]
            assert sequence == tuple((env, first + j) for j in range(len(sequence)))
            assert set(sequence) <= set(newest[-size:])


def test_a_sequence_of_two_tokens_begins_with_the_memory_of_its_first_step() -> None:
    node = collector(1, 0, 50)
    buffer = SequenceReplayBuffer(size=50, unroll_steps=8, memory_columns=["logp"], batch_size=1)
    for _ in range(3):
        buffer.push(node.collect(3))
    assert buffer.count == 1
    batch = buffer.sample()
    assert batch[STEP_COLUMN].tolist() == [list(range(8))]
    assert batch["logp"].tolist() == [1]  # the toy policy counts its steps in `logp`
    assert batch["last"].tolist() == [[False] * 7 + [True]]  # although tokens ended within it


def test_an_episode_that_does_not_continue_gets_its_last_sequence() -> None:
    """This happens when a collector resets its envs."""
    node = collector(1, 0, 50)
    buffer = SequenceReplayBuffer(size=90, unroll_steps=4, replace=False)
    buffer.push(node.collect(6))
    assert len(held(buffer)) == 1
    node.reset_env()
    buffer.push(node.collect(3))
    assert held(buffer) == [((0, 0), (0, 1), (0, 2), (0, 3)), ((0, 2), (0, 3), (0, 4), (0, 5))]


@pytest.mark.parametrize("period", [1, 3])
def test_priorities_of_sequences_across_tokens_are_assigned_to_them(period: int) -> None:
    node = collector(2, 1, 30)
    buffer = SequenceReplayBuffer(
        size=200, unroll_steps=5, period_steps=period, batch_size=6, eta=0.5, replace=False
    )
    for _ in range(6):
        buffer.push(node.collect(8))
    batch = buffer.sample()
    priorities = np.abs(batch[STEP_COLUMN]).astype(np.float32)
    buffer.update(priorities)
    stored = buffer.sequences.metadata["priority"][buffer._last_places]
    expected = 0.5 * priorities.max(1) + 0.5 * priorities.mean(1)
    assert stored.round(3).tolist() == expected.round(3).tolist()


def test_sequences_are_recovered_from_a_mapped_file(tmp_path: Path) -> None:
    def make_buffer(**more: Any) -> SequenceReplayBuffer:
        storage = MappedStorage(path=str(tmp_path / "rows"), **more)
        return SequenceReplayBuffer(
            size=200, unroll_steps=5, period_steps=2, replace=False, storage=storage
        )

    node, buffer = collector(3, 5), make_buffer()
    for _ in range(9):
        buffer.push(node.collect(10))
    before = held(buffer)
    buffer.close()
    again = make_buffer(on_existing="reuse")
    assert held(again) == before
    again.push(node.collect(10))
    assert any(sequence not in before for sequence in held(again))
    again.close()


def test_the_age_of_a_sequence_counts_from_the_weights_that_collected_its_first_step() -> None:
    node = collector(2, 0, length=50)
    buffer = SequenceReplayBuffer(unroll_steps=8, burn_in_steps=0, batch_size=2, size=100)
    for version in (3, 5, 7):
        node._load_weights(replace(weights(0), version=version))  # of another firing each
        buffer.ctx.clock = Clock({"learner": Count(train_iters=version + 4)})
        buffer.push(node.collect(12))  # six steps of each env
    collected = buffer.sequences.metadata["train_iters"][: buffer.count]
    assert collected.tolist() == [3, 3, 5, 5]  # they begin with the steps 0 and 8 of their env
