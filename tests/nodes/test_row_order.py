"""Wherever a node cuts a token, `last` is set: each other row is followed by the next step of its env."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrl.core.batch import Batch
from flowrl.core.row_order import with_marked_end
from flowrl.nodes.buffers.episode_replay_buffer import EpisodeReplayBuffer
from flowrl.nodes.buffers.queue_buffer import QueueBuffer
from flowrl.nodes.buffers.row_splitter import RowSplitter
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.datasets.dataset_reader import DatasetReader
from flowrl.nodes.datasets.dataset_writer import DatasetWriter
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from tests.nodes.toy_policies import Toy, weights
from tests.quick_selection import examples


def collector(n: int, nstep: int = 1) -> SampleCollector:
    envs, policy = envs_and_policy(nstep)
    return SampleCollector(envs=envs, policy=policy, n_sample=n)


def envs_and_policy(nstep: int = 1) -> tuple[SerialEnvManager, Toy]:
    env = Gymnasium(id="tests.nodes.toy_envs:CountingEnv", kwargs={"length": 5})
    envs = SerialEnvManager(env=env, count=3)
    return envs, Toy(obs=envs.spec().obs, action=envs.spec().action, nstep=nstep)


def require_order(rows: Batch) -> None:
    """Compare each row with the one behind it."""
    seed, t = rows["obs"].T
    follows = (seed[1:] == seed[:-1]) & (t[1:] == t[:-1] + 1)
    assert (follows | rows["last"][:-1]).all()
    assert rows["last"][-1]


@examples(30)
@given(st.integers(1, 40), st.integers(1, 24), st.integers(1, 3), st.sampled_from([1, 3]))
def test_batches_of_a_queue_are_in_order_wherever_they_are_cut(
    token_rows: int, batch_rows: int, max_use: int, nstep: int
) -> None:
    node, queue = collector(token_rows, nstep=nstep), QueueBuffer(max_use=max_use, size=1000)
    total = 0
    for _ in range(4):
        token = node.fire(weights(0))
        require_order(token)
        queue.push(token)
        while queue.count >= batch_rows:
            batch = queue.sample(batch_rows)
            require_order(batch)
            total += len(batch)
    assert total >= 4 * token_rows - batch_rows


def test_a_queue_changes_no_row_but_those_at_its_cuts() -> None:
    token, queue = collector(60).fire(weights(0)), QueueBuffer(batch_size=13)
    queue.push(token)
    rows = Batch.concat([queue.sample() for _ in range(4)])
    for name in rows:
        if name != "last":
            assert np.array_equal(rows[name], token[name][:52])
    changed = np.flatnonzero(rows["last"] != token["last"][:52])
    assert len(changed)
    assert {*changed.tolist()} <= {12, 25, 38, 51}
    assert not token["last"][changed].any()  # arrays that others may hold are not written to


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_parts_of_a_token_are_in_order(parts: int) -> None:
    token = collector(60).fire(weights(0))
    for part in RowSplitter(first=7, count=36, parts=parts).fire(token):
        require_order(part)
    priorities = Batch({"priority": np.zeros(6, np.float32)})
    assert [list(part) for part in RowSplitter(parts=2).fire(priorities)] == [["priority"]] * 2


@pytest.mark.parametrize("rows", [1, 17, 23, None])
def test_the_first_rows_of_a_dataset_are_in_order(rows: int | None, tmp_path: Path) -> None:
    path = str(tmp_path / "data.npz")
    DatasetWriter(path=path, rows=40).fire(collector(60).fire(weights(0)))
    read = DatasetReader(path=path, rows=rows).fire()
    assert len(read) == (rows or 40)
    require_order(read)


def test_parts_of_episodes_are_in_order() -> None:
    buffer = EpisodeReplayBuffer(batch_size=5, part_steps=3, size=100)
    envs, policy = envs_and_policy()
    buffer.push(EpisodeCollector(envs=envs, policy=policy, n_episode=6).fire(weights(0)))
    require_order(buffer.sample())


def test_of_an_unroll_the_final_step_is_marked() -> None:
    last = np.zeros((2, 3), np.bool_)
    marked = with_marked_end(Batch({"last": last}))
    assert marked["last"].tolist() == [[False] * 3, [False, False, True]]
    assert with_marked_end(marked) is marked
    assert not last.any()
