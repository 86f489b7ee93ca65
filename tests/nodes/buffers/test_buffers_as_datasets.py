"""The rows of every kind of buffer can be saved and loaded, and a graph can begin with the rows of a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.episode_replay_buffer import EpisodeReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.queue_buffer import QueueBuffer
from flowrl.nodes.buffers.sequence_replay_buffer import SequenceReplayBuffer
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.datasets.formats import format_of
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.lazy import tensor
from flowrl.nodes.policies.random import Random

KINDS: dict[str, Any] = {
    "naive": lambda: NaiveReplayBuffer(size=90, batch_size=20),
    "advanced": lambda: AdvancedReplayBuffer(size=90, batch_size=20),
    "episode": lambda: EpisodeReplayBuffer(size=90, batch_size=2),
    "sequence": lambda: SequenceReplayBuffer(size=90, unroll_steps=4, batch_size=4),
    "queue": lambda: QueueBuffer(size=900, batch_size=20),
}
FILES = ["rows.npz", "rows.h5", "rows-v0"]


def play(episodes: int) -> list[Batch]:
    envs = SerialEnvManager(env=Gymnasium(id="CartPole-v1"), count=2)
    spec = envs.spec()
    node = EpisodeCollector(envs=envs, policy=Random(obs=spec.obs, action=spec.action))
    return node.collect(episodes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_the_rows_of_a_buffer_can_be_written_to_a_dataset_and_pushed_again(
    kind: str, name: str, tmp_path: Path
) -> None:
    if name.endswith(".h5"):
        pytest.importorskip("h5py")
    if name.endswith("-v0"):
        pytest.importorskip("minari")
    full, empty = KINDS[kind](), KINDS[kind]()
    for episode in play(9):  # more steps than fit, so the oldest are evicted
        full.push(episode)
    path = tmp_path / name
    format_of(path).write(path, full.rows())
    found = format_of(path).read(path)
    empty.push(found)
    held, again = full.rows(), empty.rows()
    assert len(held) > 60
    for column in again:
        assert np.array_equal(held[column], again[column]), column
    if kind != "episode":  # the number of rows in a batch of episodes varies
        assert len(empty.sample()) == len(full.sample())


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_of_each_kind_contains_its_rows(kind: str) -> None:
    full, empty = KINDS[kind](), KINDS[kind]()
    for episode in play(9):
        full.push(episode)
    empty.load_state_dict(full.state_dict())
    a, b = full.sample(), empty.sample()
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert empty.count == full.count
    empty.clear()
    assert empty.count == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["naive_buffer", "advanced_buffer"])
def test_a_graph_can_begin_with_the_rows_of_a_dataset(kind: str, tmp_path: Path) -> None:
    records = tmp_path / "records.yaml"
    records.write_text(
        "extends: cartpole_dqn\n"
        f"nodes: {{writer: {{type: npz_writer, path: '{tmp_path}/rows.npz', rows: 2000}}}}\n"
        "edges: [collector -> writer]\n"
    )
    flowrl.load(records).run(train_iters=48, out=tmp_path / "a")
    graph = tmp_path / "graph.yaml"
    graph.write_text(
        "extends: cartpole_dqn\n"
        "nodes:\n"
        "  demos: {type: demos, path: rows.npz}\n"
        f"  buffer: {{type: {kind}, log_every_pushes: 1}}\n"
        "edges: ['demos, collector -> buffer']\n"
        "warmup: []\n"
    )
    assert flowrl.load(graph).check().problems == []
    flowrl.load(graph).run(train_iters=8, out=tmp_path / "b")
    lines = map(json.loads, (tmp_path / "b" / "metrics.jsonl").read_text().splitlines())
    reports = [line for line in lines if line["node"] == "buffer"]
    rows = len(format_of(tmp_path / "rows.npz").read(tmp_path / "rows.npz"))
    assert rows > 500
    assert reports[0]["pushed_rows"] == rows + 256


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_size_below_1_is_refused(kind: str) -> None:
    buffer = KINDS[kind]()
    for episode in play(4):
        buffer.push(episode)
    for size in (0, -3):
        with pytest.raises(ValueError, match=rf"the batch size is {size}; give 1 or more"):
            buffer.sample(size)


@pytest.mark.parametrize("kind", KINDS)
def test_the_columns_of_a_batch_become_torch_tensors_without_a_copy(kind: str) -> None:
    buffer = KINDS[kind]()
    for episode in play(4):
        buffer.push(episode)
    obs = buffer.sample()["obs"]
    found = tensor(obs)
    assert found.data_ptr() == obs.__array_interface__["data"][0]
    assert not obs.flags.writeable
