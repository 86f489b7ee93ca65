"""Datasets in NPZ and HDF5 files, their metadata, and the nodes that read and write them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.config import PartSpec
from flowrl.core.context import Context
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import MetricsRecord
from flowrl.graph.bundled import graphs_folder
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.datasets import npz
from flowrl.nodes.datasets.dataset_reader import DatasetReader
from flowrl.nodes.datasets.dataset_writer import DatasetWriter
from flowrl.nodes.datasets.formats import format_of
from flowrl.nodes.datasets.metadata import NO_METADATA, metadata_of
from flowrl.nodes.datasets.npz import read, read_metadata, read_schema, write
from flowrl.nodes.policies.dqn import Dqn

NO_SURROUNDINGS = Surroundings({}, {}, frozenset())


def table(*values: int) -> Batch:
    action = np.array(values, np.int64)
    return Batch({"obs": np.ones((len(values), 3), np.float32), "action": action})


def describe(path: Path, **params: Any) -> Any:
    return DatasetReader.describe(DatasetReader.Config(path=str(path), **params), NO_SURROUNDINGS)


def test_a_written_table_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "demos.npz"
    write(path, table(1, 2, 3))
    found = read(path)
    assert found["action"].tolist() == [1, 2, 3]
    assert found.schema == table(1).schema
    assert [p.name for p in path.parent.iterdir()] == ["demos.npz"]


def test_equal_tables_give_equal_files(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        write(tmp_path / name, table(1, 2))
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "demos.npz"
    write(path, table(1))

    def full(file: Any, **columns: Any) -> None:
        file.write(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="no space"):
        write(path, table(2))
    assert read(path)["action"].tolist() == [1]
    assert list(tmp_path.iterdir()) == [path]


def test_describe_reads_the_schema_from_the_headers(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    write(path, table(1, 2, 3))
    facts = describe(path)
    assert facts.outs["data"] == {"obs": Column("float32", (3,)), "action": Column("int64")}
    assert facts.memory_bytes == 3 * 20
    assert describe(path, rows=2).memory_bytes == 2 * 20


def test_describe_reads_no_arrays(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "demos.npz"
    write(path, table(1))
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("the arrays were read"))
    assert read_schema(path)[1] == 1


def test_the_first_token_contains_all_rows_and_later_ones_none(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    write(path, table(4, 5, 6))
    node = DatasetReader(path=str(path))
    tokens = [node.fire() for _ in range(3)]
    assert [token["action"].tolist() for token in tokens] == [[4, 5, 6], [], []]
    assert tokens[1].schema == tokens[0].schema
    assert DatasetReader(path=str(path), rows=2).fire()["action"].tolist() == [4, 5]


def test_a_reader_that_continues_holds_no_rows_that_it_has_emitted(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    write(path, table(4, 5, 6))
    first, continued = DatasetReader(path=str(path)), DatasetReader(path=str(path))
    first.fire()
    continued.load_state_dict(first.state_dict())
    assert continued._table is None
    assert len(continued.fire()) == 0


def test_a_missing_file_is_refused_with_a_hint_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(
        UnsoundError, match=r"the file '.*none.npz' does not exist; an npz_writer"
    ) as raised:
        describe(tmp_path / "none.npz")
    assert raised.value.key == "path"


def pickled(path: Path) -> None:
    np.savez(path, obs=np.array([{}], object))


def uneven(path: Path) -> None:
    np.savez(path, obs=np.zeros(3), action=np.zeros(2))


def scalar(path: Path) -> None:
    np.savez(path, obs=np.float32(3))


def empty(path: Path) -> None:
    np.savez(path)


def without_rows(path: Path) -> None:
    write(path, table())


def text(path: Path) -> None:
    path.write_text("not a dataset")


def cut_off(path: Path) -> None:
    write(path, table(*range(100)))
    path.write_bytes(path.read_bytes()[:500])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (pickled, "cannot be read: 'obs.npy' contains Python objects"),
        (uneven, "is not a table: its arrays differ in length"),
        (scalar, "is not a table"),
        (empty, "is not a table"),
        (without_rows, "has no rows"),
        (text, "cannot be read: File is not a zip file"),
        (cut_off, "cannot be read"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_invalid_file_is_refused(tmp_path: Path, spoil: Any, message: str) -> None:
    path = tmp_path / "demos.npz"
    spoil(path)
    with pytest.raises(UnsoundError, match=message):
        describe(path)
    with pytest.raises(UnsoundError, match=message):
        DatasetReader(path=str(path))


def test_the_writer_writes_the_newest_rows(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    node = DatasetWriter(path=str(path), rows=4)
    found = []
    for token in (table(1, 2, 3), table(4, 5, 6), table(), table(7), table(*range(10, 20))):
        node.fire(token)
        found.append(read(path)["action"].tolist())
    assert found == [
        [1, 2, 3],
        [3, 4, 5, 6],
        [3, 4, 5, 6],
        [4, 5, 6, 7],
        [16, 17, 18, 19],
    ]
    assert node.ctx.records[-1] == MetricsRecord({"rows": 4.0})


@pytest.mark.slow
def test_the_writer_writes_again_when_a_tenth_of_the_rows_are_new_and_when_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lengths = tmp_path / "out.npz", []

    def write_and_count(path: Path, rows: Batch, metadata: Any) -> None:
        lengths.append(len(rows))
        write(path, rows, metadata)

    monkeypatch.setattr(npz, "write", write_and_count)
    node = DatasetWriter(path=str(path), rows=200)
    for k in range(1003):
        node.fire(table(k))
        held = read(path)["action"]
        assert held[-1] >= k - 20
        assert len(held) >= 0.9 * min(k + 1, 200)
    assert len(lengths) < 100  # 40 while the dataset is full, and fewer than 60 before
    assert read(path)["action"][-1] < 1002
    node.close()
    node.close()
    assert read(path)["action"].tolist() == list(range(803, 1003))


def test_a_loaded_writer_writes_all_its_rows(tmp_path: Path) -> None:
    node = DatasetWriter(path=str(tmp_path / "out.npz"), rows=200)
    for k in range(105):
        node.fire(table(k))
    other = DatasetWriter(path=str(tmp_path / "resumed.npz"), rows=200)
    other.load_state_dict(node.state_dict())
    other.close()
    assert read(tmp_path / "resumed.npz")["action"].tolist() == list(range(105))


def test_the_writer_releases_tokens_that_it_does_not_need(tmp_path: Path) -> None:
    node = DatasetWriter(path=str(tmp_path / "out.npz"), rows=2)
    for _ in range(5):
        node.fire(table(1, 2, 3))
    assert len(node._tokens) == 1


def test_the_writer_describes_its_memory() -> None:
    config = DatasetWriter.Config(path="x", rows=10)
    known = Surroundings({"data": {"obs": Column("float32", (3,))}}, {}, frozenset())
    assert DatasetWriter.describe(config, known).memory_bytes == 120


# metadata


SCHEMA = {
    "obs": Column("float32", (3,), low=-1.0, high=(1.0, 2.0, float("inf"))),
    "action": Column("int64", n=2),
}
RETURN_PARAMETERS = {"nstep": 10, "gamma": 0.97}


def dqn(**params: Any) -> PartSpec:
    return PartSpec("dqn", Dqn, Dqn.Config(**{**RETURN_PARAMETERS, **params}))


def record(path: Path, policy: PartSpec | None) -> None:
    config = DatasetWriter.Config(path=str(path), policy=policy)
    DatasetWriter(config=config, context=Context("writer", inputs={"data": SCHEMA})).fire(
        table(0, 1)
    )


def test_a_file_contains_the_facts_of_columns(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    record(path, dqn())
    schema, rows = read_schema(path)
    assert rows == 2
    assert schema["action"].n == 2
    assert schema["obs"].low == -1.0
    assert schema["obs"].high == (1.0, 2.0, float("inf"))
    assert set(read(path)) == {"obs", "action"}


def test_rows_with_another_gamma_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    record(path, dqn())
    message = "have gamma 0.97, but the policy has gamma 0.9; record them"
    with pytest.raises(UnsoundError, match=message):
        describe(path, policy=dqn(gamma=0.9))
    assert describe(path, policy=dqn()).outs["data"]["action"].n == 2
    describe(path, policy=None)


def test_a_file_says_how_its_rows_are_discounted() -> None:
    schema = {"discount": Column("float32", gamma=0.75)}
    assert metadata_of(schema, dqn(gamma=0.9)).rows["gamma"] == 0.75
    assert metadata_of({}, dqn(gamma=0.9)).rows["gamma"] == 0.9


def test_rows_with_summed_rewards_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    schema = {"action": Column("int64"), "reward": Column("float32", sums=10)}
    config = DatasetWriter.Config(path=str(path), policy=dqn())
    writer = DatasetWriter(config=config, context=Context("writer", inputs={"data": schema}))
    writer.fire(Batch({"action": np.zeros(2, np.int64), "reward": np.ones(2, np.float32)}))
    message = (
        "sum 10 rewards each; expected rows of one reward, which buffers sum; record them again"
    )
    for policy in (dqn(), None):
        with pytest.raises(UnsoundError, match=message):
            describe(path, policy=policy)


def test_rows_of_any_nstep_have_the_columns_of_the_collector(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    last = np.array([False, True, False, True])
    rows = {"action": np.arange(4), "reward": np.ones(4, np.float32), "last": last}
    np.savez(path, **rows)
    assert set(describe(path, policy=dqn(nstep=1)).outs["data"]) == set(rows)
    facts, config = describe(path, policy=dqn()), DatasetReader.Config(path=str(path), policy=dqn())
    table = DatasetReader(config=config).fire()
    assert facts.outs["data"] == dict(table.schema)
    assert table["origin/step"].tolist() == [0, 1, 3, 4]  # row 2 does not follow row 1
    linked = {name: table[name] for name in table}
    np.savez(path, **linked)  # such as a collector's rows
    assert set(describe(path, policy=dqn(nstep=1)).outs["data"]) == set(rows)
    assert DatasetReader(config=config).fire()["origin/step"].tolist() == [0, 1, 3, 4]


def test_a_file_without_metadata_is_read_without_checks(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    np.savez(path, **table(1, 2).columns)
    assert read_metadata(path) == NO_METADATA
    assert describe(path, policy=dqn()).outs["data"]["action"].n is None


def test_the_bundled_demonstrations_contain_metadata() -> None:
    found = read_metadata(graphs_folder() / "cartpole_demos.npz")
    assert found.rows == {"nstep": 1, "gamma": 0.99}
    assert found.columns["action"] == {"n": 2}


def test_check_reports_demonstrations_of_another_policy() -> None:
    checked = flowrl.load("cartpole_dqn_demos", {"policy.gamma": 0.9}).check()
    assert "but the policy has gamma 0.9" in str(checked.problems[0])
    assert flowrl.load("cartpole_dqn_demos", {"policy.nstep": 3}).check().problems == []


# HDF5


@pytest.fixture(params=["demos.npz", "demos.h5", "demos.hdf5"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    pytest.importorskip("h5py")
    return tmp_path / "new" / str(request.param)


def nested() -> Batch:
    flags = np.array([True, False, True])
    image = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    return Batch({"obs/image": image, "obs/pos": np.ones(3, np.float32), "last": flags})


def test_every_format_reads_what_it_wrote(path: Path) -> None:
    kept = format_of(path)
    kept.write(path, nested())
    found = kept.read(path)
    assert found.schema == nested().schema
    assert all(np.array_equal(found[name], nested()[name]) for name in found)
    assert len(kept.read(path, 2)) == 2
    assert kept.read_schema(path) == (nested().schema, 3)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_every_format_stores_metadata(path: Path) -> None:
    record(path, dqn())
    assert format_of(path).read_metadata(path).rows == {"nstep": 1, "gamma": 0.97}
    assert describe(path, policy=dqn()).outs["data"]["obs"].high == (1.0, 2.0, float("inf"))
    with pytest.raises(UnsoundError, match=r"but the policy has gamma 0\.5"):
        describe(path, policy=dqn(gamma=0.5))
    assert DatasetReader(path=str(path)).fire()["action"].tolist() == [0, 1]


def test_every_format_refuses_a_missing_or_invalid_file(path: Path) -> None:
    with pytest.raises(UnsoundError, match=r"the file .* does not exist"):
        describe(path)
    path.parent.mkdir()
    path.write_text("not a dataset")
    with pytest.raises(UnsoundError, match="cannot be read"):
        describe(path)


def test_an_hdf5_file_that_is_not_a_table_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["obs"], file["action"] = np.zeros(3), np.zeros(2)
    with pytest.raises(UnsoundError, match="is not a table"):
        describe(path)
    with h5py.File(path, "w") as file:
        file["obs"] = ["text"]
    with pytest.raises(UnsoundError, match="'obs' contains Python objects or text"):
        describe(path)


def test_without_h5py_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UnsoundError, match=r"HDF5 requires h5py; pip install 'flowrl\[hdf5\]'"):
        describe(path)


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_the_rows_of_a_buffer_are_written_and_pushed_again_in_order(kind: Any, path: Path) -> None:
    full, empty = kind(size=4, batch_size=2), kind(size=9, batch_size=2)
    for values in ((1, 2, 3), (4, 5, 6)):
        full.push(table(*values))
    format_of(path).write(path, full.rows())
    empty.push(format_of(path).read(path))
    assert empty.rows()["action"].tolist() == [3, 4, 5, 6]
