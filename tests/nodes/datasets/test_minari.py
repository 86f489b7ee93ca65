"""Minari datasets: datasets of Minari are read as rows, and written datasets are read by Minari."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import flowrl
from flowrl.core.batch import Batch
from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.nodes.buffers.episode_replay_buffer import EpisodeReplayBuffer
from flowrl.nodes.collectors.episode_collector import EpisodeCollector
from flowrl.nodes.datasets import minari as minari_format
from flowrl.nodes.datasets.dataset_reader import DatasetReader
from flowrl.nodes.datasets.formats import format_of
from flowrl.nodes.datasets.metadata import DatasetMetadata
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.random import Random

minari = pytest.importorskip("minari")
SPACE = Dict({"a": Box(-1, 1, (2,), np.float32), "b": Box(0, 255, (3,), np.uint8)})


def write_with_minari(folder: Path, lengths: list[int]) -> Path:
    """Write a dataset with Minari itself."""
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    path = folder / "toys" / "expert-v0"
    (path / "data").mkdir(parents=True)
    storage = MinariStorage.new(path / "data", SPACE, Discrete(4))
    storage.update_metadata({"dataset_id": "toys/expert-v0", "minari_version": minari.__version__})
    rng = np.random.default_rng(0)
    storage.update_episodes(
        EpisodeBuffer(
            id=k,
            observations={
                "a": rng.random((n + 1, 2)).astype(np.float32),
                "b": rng.integers(255, size=(n + 1, 3)).astype(np.uint8),
            },
            actions=rng.integers(4, size=n),
            rewards=np.arange(n, dtype=np.float64),
            terminations=np.arange(n) == n - 1 if k % 2 else np.zeros(n, bool),
            truncations=np.zeros(n, bool) if k % 2 else np.arange(n) == n - 1,
        )
        for k, n in enumerate(lengths)
    )
    return path


def test_a_dataset_of_minari_is_read_as_rows(tmp_path: Path) -> None:
    path = write_with_minari(tmp_path, [3, 1, 2])
    assert format_of(path) is minari_format
    schema, rows = minari_format.read_schema(path)
    assert rows == 6
    table = minari_format.read(path)
    assert {n: (c.dtype, c.shape) for n, c in schema.items()} == {
        n: (c.dtype, c.shape) for n, c in table.schema.items()
    }
    assert schema["action"].n == 4
    assert table["reward"].tolist() == [0, 1, 2, 0, 0, 1]
    assert table["last"].tolist() == [False, False, True, True, False, True]
    assert table["terminated"].tolist() == [False, False, False, True, False, False]
    assert table["truncated"].tolist() == [False, False, True, False, False, True]
    for leaf in ("a", "b"):
        obs, next_obs = table[f"obs/{leaf}"], table[f"next_obs/{leaf}"]
        assert np.array_equal(obs[1:3], next_obs[:2])
        assert np.array_equal(obs[5], next_obs[4])
    episode = minari.MinariDataset(path / "data")[2]
    assert np.array_equal(episode.observations["a"][:-1], table["obs/a"][4:])
    assert np.array_equal(episode.actions, table["action"][4:])
    assert len(minari_format.read(path, 4)) == 4


def play(env: Any, episodes: int) -> Batch:
    manager = SerialEnvManager(env=env, count=2)
    spec = manager.spec()
    node = EpisodeCollector(envs=manager, policy=Random(obs=spec.obs, action=spec.action))
    return Batch.concat(node.collect(episodes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", ["CartPole-v1", "Pendulum-v1", "tests.nodes.buffers.transforms.bit_flip:BitFlip"]
)
def test_a_written_dataset_is_read_again_and_by_minari(env: str, tmp_path: Path) -> None:
    table = play(Gymnasium(id=env), 4)
    path = tmp_path / "deep" / "played-v3"
    for _ in range(2):  # the second one replaces the first
        minari_format.write(
            path, table, DatasetMetadata({"action": {"n": 5}}, {"nstep": 1, "gamma": 0.9})
        )
    again = minari_format.read(path)
    for name in again:
        assert np.array_equal(again[name], table[name]), name
        assert again[name].dtype == table[name].dtype, name
    data = minari.MinariDataset(path / "data")
    assert (data.total_episodes, data.total_steps) == (4, len(table))
    for episode in data.iterate_episodes():
        assert len(episode.rewards) == len(episode.actions)
    assert [p.name for p in path.parent.iterdir()] == ["played-v3"]


def test_incomplete_episodes_are_written_as_truncated(tmp_path: Path) -> None:
    table = play(Gymnasium(id="CartPole-v1"), 1).take(slice(5))
    minari_format.write(tmp_path / "cut-v0", table)
    again = minari_format.read(tmp_path / "cut-v0")
    assert again["truncated"].tolist() == [False] * 4 + [True]
    assert again["terminated"].tolist() == [False] * 5


def demos(path: Path, **policy: Any) -> tuple[Any, DatasetReader]:
    spec = PartSpec("dqn", Dqn, Dqn.Config(model=None, **policy))
    config = DatasetReader.Config(path=str(path), policy=spec)
    facts = DatasetReader.describe(config, Surroundings({}, {}, frozenset()))
    return facts, DatasetReader(config=config, context=Context("demos"))


def test_demonstrations_from_minari_get_the_discount_of_the_policy(tmp_path: Path) -> None:
    path = write_with_minari(tmp_path, [3, 1, 2])
    facts, node = demos(path, gamma=0.75)
    table = node.fire()
    assert facts.outs["data"] == dict(table.schema)
    assert table["discount"].tolist() == [0.75, 0.75, 0.75, 0, 0.75, 0.75]
    assert len(node.fire()) == 0
    facts, node = demos(path, nstep=3)  # the rows of an episode follow each other
    assert facts.outs["data"]["origin/step"] == node.fire().schema["origin/step"]


def test_an_episode_buffer_stores_episodes_from_minari(tmp_path: Path) -> None:
    buffer = EpisodeReplayBuffer(size=100, batch_size=3, replace=False)
    buffer.push(minari_format.read(write_with_minari(tmp_path, [3, 1, 2])))
    assert buffer.count == 3
    assert len(buffer.sample()) == 6


def test_invalid_folders_rows_and_missing_packages_are_refused(
    tmp_path: Path, monkeypatch: Any
) -> None:
    with pytest.raises(UnsoundError, match=r"none-v0' is not a Minari dataset; a folder such as"):
        minari_format.read_schema(tmp_path / "none-v0")
    (tmp_path / "broken-v0" / "data").mkdir(parents=True)
    with pytest.raises(UnsoundError, match="cannot be read: No data found"):
        minari_format.read_schema(tmp_path / "broken-v0")
    table = Batch({"obs": np.zeros((2, 3)), "action": np.zeros(2, int)})
    with pytest.raises(UnsoundError, match="the rows have no column 'reward'"):
        minari_format.write(tmp_path / "new-v0", table)
    with pytest.raises(
        UnsoundError, match="the rows sum 3 rewards each, so they are not steps of episodes"
    ):
        minari_format.write(tmp_path / "new-v0", table, DatasetMetadata({}, {"nstep": 3}))
    path = write_with_minari(tmp_path, [2])
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(
        UnsoundError, match=r"require the package minari; pip install 'flowrl\[minari\]'"
    ):
        minari_format.read(path)


@pytest.mark.slow
def test_one_graph_writes_a_dataset_and_another_learns_from_it(tmp_path: Path) -> None:
    writes = tmp_path / "writes.yaml"
    writes.write_text(
        "extends: cartpole_dqn\n"
        "nodes: {tape: {type: npz_writer, path: '"
        + str(tmp_path / "played-v0")
        + "', rows: 300}}\n"
        "edges: [collector -> tape]\n"
    )
    flowrl.load(writes).run(train_iters=24, out=tmp_path / "a")
    learns = tmp_path / "learns.yaml"
    learns.write_text(
        "extends: cartpole_dqn\n"
        "nodes: {demos: {type: demos, path: played-v0}}\n"
        "edges: [demos -> buffer.demos]\n"
    )
    assert flowrl.load(learns).check().problems == []
    assert flowrl.load(learns).run(train_iters=8, out=tmp_path / "b").train_iters == 8
