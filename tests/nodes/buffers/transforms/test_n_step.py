"""n-step returns of drawn rows, compared with the windows of a collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.core.batch import Batch, Column
from flowrl.core.node import Surroundings, UnsoundError
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage.mapped import MappedStorage
from flowrl.nodes.buffers.transforms.her import Her
from flowrl.nodes.buffers.transforms.n_step import NStep
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.origin import ENV_COLUMN, STEP_COLUMN
from tests.nodes.toy_policies import Toy

GAMMA = 0.93
SUMMED = ("reward", "next_obs", "terminated", "truncated", "discount", "obs", "action")
COUNTING = "tests.nodes.toy_envs:CountingEnv"


def collector(kind: type[Any], nstep: int, seed: int, envs: int = 3, **env: Any) -> Any:
    part = Gymnasium(id=COUNTING, kwargs={"ends": "by seed", **env})
    manager = SerialEnvManager(env=part, count=envs, seed=seed)
    spec = manager.spec()
    policy = Toy(obs=spec.obs, action=spec.action, nstep=nstep, gamma=GAMMA)
    return kind(envs=manager, policy=policy, seed=seed, origin=True)


def n_step(steps: int) -> NStep:
    policy = Toy(obs=Column("float32"), action=Column("int64"), gamma=GAMMA)
    return NStep(steps=steps, policy=policy)


def by_step(batch: Batch) -> dict[tuple[int, int], int]:
    keys = zip(batch[ENV_COLUMN].tolist(), batch[STEP_COLUMN].tolist(), strict=True)
    return {key: k for k, key in enumerate(keys)}


def assert_same_windows(found: Batch, expected: Batch) -> int:
    """Assert that windows in both batches have the same bits; return their number."""
    mine, theirs = by_step(found), by_step(expected)
    both = mine.keys() & theirs.keys()
    for key in both:
        for name in SUMMED:
            assert np.array_equal(found[name][mine[key]], expected[name][theirs[key]]), (name, key)
    return len(both)


def all_rows(buffer: Any) -> Batch:
    return buffer.sample(buffer.count)


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 30), st.lists(st.integers(1, 14), min_size=1, max_size=6),
    st.integers(0, 2**31), st.integers(1, 4),
)  # fmt: skip
def test_windows_equal_those_of_the_collector_across_tokens_and_the_wrap_around(
    kind: type[Any], steps: int, size: int, amounts: list[int], seed: int, envs: int
) -> None:
    one, many = (collector(SampleCollector, n, seed, envs) for n in (1, steps))
    buffer = kind(size=size, replace=False, transforms=(n_step(steps),))
    for n in amounts:
        buffer.push(one.collect(n))
    expected = Batch.concat([many.collect(n) for n in amounts])
    found = all_rows(buffer)
    mine, whole = by_step(found), {}
    for (env, step), k in mine.items():
        ends = [step + j for j in range(steps)]
        held = all((env, t) in mine for t in ends)
        if held or found["terminated"][k] or found["truncated"][k]:
            whole[env, step] = k
    kept = Batch(found.take(np.array(sorted(whole.values()), np.int64)).columns)
    assert_same_windows(kept, expected)


def test_every_window_of_whole_episodes_equals_that_of_the_collector() -> None:
    one, many = (collector(EpisodeCollector, n, 7) for n in (1, 4))
    buffer = NaiveReplayBuffer(size=500, replace=False, transforms=(n_step(4),))
    expected = Batch.concat([b for _ in range(5) for b in many.collect(6)])
    for _ in range(5):
        for episode in one.collect(6):
            buffer.push(episode)
    assert assert_same_windows(all_rows(buffer), expected) == len(expected) == buffer.count


def test_a_window_whose_rows_have_not_arrived_bootstraps_at_the_last_stored_row() -> None:
    one = collector(SampleCollector, 1, 3, envs=1, length=50)
    buffer = NaiveReplayBuffer(size=50, replace=False, transforms=(n_step(3),))
    buffer.push(one.collect(2))
    found = all_rows(buffer)
    first, second = (int(np.flatnonzero(found[STEP_COLUMN] == t)[0]) for t in (0, 1))
    assert found["reward"][first] == np.float32(1 + GAMMA * 2)
    assert found["discount"][first] == np.float32(GAMMA**2)
    assert found["reward"][second] == 2
    assert found["discount"][second] == np.float32(GAMMA)
    buffer.push(one.collect(2))
    found = all_rows(buffer)
    first = int(np.flatnonzero(found[STEP_COLUMN] == 0)[0])
    assert found["reward"][first] == np.float32(1 + GAMMA * 2 + GAMMA**2 * 3)


def test_a_loaded_buffer_draws_the_same_windows() -> None:
    one = collector(SampleCollector, 1, 3)
    params: dict[str, Any] = {"size": 40, "batch_size": 16, "transforms": (n_step(3),)}
    buffer, copy = AdvancedReplayBuffer(**params), AdvancedReplayBuffer(**params)
    for n in (20, 20, 10):
        buffer.push(one.collect(n))
    copy.load_state_dict(buffer.state_dict())
    more = one.collect(10)
    for held in (buffer, copy):
        held.push(more)
    a, b = buffer.sample(), copy.sample()
    assert all(np.array_equal(a[name], b[name]) for name in a)
    with pytest.raises(ValueError, match="a buffer with different transforms"):
        AdvancedReplayBuffer(size=40).load_state_dict(buffer.state_dict())


def check(transforms: tuple[Any, ...], schema: dict[str, Column]) -> None:
    config = NaiveReplayBuffer.Config(transforms=transforms)
    NaiveReplayBuffer.describe(config, Surroundings({"data": schema}, {}, frozenset()))


def test_missing_columns_and_conflicting_parameters_are_refused() -> None:
    flag, number = Column("bool"), Column("float32")
    schema = {"obs": number, "reward": number, "terminated": flag, "truncated": flag}
    with pytest.raises(UnsoundError, match="n_step needs the column 'last'; connect a collector"):
        check((n_step(3),), schema)
    with pytest.raises(UnsoundError, match="n_step needs the column 'next_obs'"):
        check((n_step(3),), {**schema, "last": flag, "discount": number})
    whole = {**schema, "last": flag, "discount": number, "next_obs": number}
    with pytest.raises(UnsoundError, match="have no origin columns; write `origin: true` at"):
        check((n_step(3),), whole)
    apart = NStep(steps=3, tokens_apart=True, policy=n_step(3).config.policy)
    check((apart,), whole)
    whole |= {ENV_COLUMN: Column("int32")}
    check((n_step(3),), whole)
    with pytest.raises(
        UnsoundError, match="`tokens_apart` is only for rows without origin columns"
    ):
        check((apart,), whole)
    with pytest.raises(UnsoundError, match="needs a policy with `gamma`"):
        check((NStep(steps=3),), whole)
    summed = Toy(obs=number, action=number, nstep=5)
    with pytest.raises(
        UnsoundError, match="rows of one reward, but the policy's rows sum 5 rewards; write `nstep"
    ):
        check((NStep(steps=3, policy=summed),), whole)
    goals = {
        f"{when}/{what}_goal": number
        for when in ("obs", "next_obs")
        for what in ("achieved", "desired")
    }
    her = Her(reward="tests.nodes.buffers.transforms.bit_flip:reward")
    with pytest.raises(UnsoundError, match="two transforms compute rewards"):
        check((n_step(3), her), {**whole, **goals})


def test_windows_are_recovered_from_a_mapped_file(tmp_path: Path) -> None:
    def make_buffer(**more: Any) -> NaiveReplayBuffer:
        storage = MappedStorage(path=str(tmp_path / "rows"), **more)
        return NaiveReplayBuffer(size=60, replace=False, storage=storage, transforms=(n_step(4),))

    one, buffer = collector(SampleCollector, 1, 5), make_buffer()
    for _ in range(9):
        buffer.push(one.collect(10))
    before = all_rows(buffer)
    buffer.close()
    again = make_buffer(on_existing="reuse")
    assert assert_same_windows(all_rows(again), before) == 60
    again.close()
