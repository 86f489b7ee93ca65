"""Every kind of storage gives the same batches, bit by bit; compressed storage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.config import param
from flowrl.core.errors import NodeError
from flowrl.machine import resource_limits
from flowrl.nodes.buffers.advanced_replay_buffer import AdvancedReplayBuffer
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage import compressed
from flowrl.nodes.buffers.storage.compressed import CompressedColumn, CompressedStorage
from flowrl.nodes.buffers.storage.deduplication import FrameDeduplicator
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.storage.storage import Allocations, ColumnStore, MemoryStorage, RingLayout

NOISE = np.random.default_rng(0)


def frames(count: int, shades: int = 3) -> np.ndarray:
    return NOISE.integers(0, shades, (count, 30, 30), dtype=np.uint8)


@pytest.mark.parametrize("codec", ["lz4", "zlib"])
@pytest.mark.parametrize("shades", [2, 256])
def test_compressed_rows_keep_their_bits(codec: str, shades: int) -> None:
    rows = CompressedColumn(Column("uint8", (30, 30)), 8, *compressed.row_codec(codec))
    values = frames(5, shades)
    rows[2:5], rows[np.array([7, 0])] = values[:3], values[3:]
    assert np.array_equal(rows.take(np.array([0, 2, 3, 4, 7, 2])), values[[4, 0, 1, 2, 3, 0]])
    rows[3:4] = values[4:]
    assert np.array_equal(rows.take(np.array([3])), values[4:])


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool", "int64"])
def test_rows_of_any_dtype_can_be_compressed(dtype: str) -> None:
    rows = CompressedColumn(Column(dtype, (7, 50)), 3, *compressed.row_codec("zlib"))
    values = NOISE.integers(0, 2, (3, 7, 50)).astype(dtype)
    rows[0:3] = values[:, :, :]
    found = rows.take(np.arange(3))
    assert found.tobytes() == values.tobytes()
    assert found.dtype == values.dtype


def test_compressible_rows_take_less_and_noise_takes_little_more() -> None:
    def stored_bytes(rows: np.ndarray) -> int:
        ring = Ring(50, storage=CompressedStorage())
        ring.push({"obs": rows})
        return ring.nbytes

    blocks = frames(80)[:, :3, :3].repeat(10, 1).repeat(10, 2)
    assert stored_bytes(blocks) < 0.2 * 50 * 900
    assert stored_bytes(frames(80, 256)) < 1.1 * 50 * 900


def test_overwritten_rows_are_freed() -> None:
    ring = Ring(4, storage=CompressedStorage())
    ring.push({"obs": frames(4, 256)})
    full = ring.nbytes
    ring.push({"obs": np.zeros((4, 30, 30), np.uint8)})
    assert ring.nbytes < full / 4


def test_removed_rows_are_freed() -> None:
    node = AdvancedReplayBuffer(
        size=64, batch_size=16, max_use=1, replace=False, storage=CompressedStorage(), seed=1
    )
    node.push(Batch({"obs": frames(64, 256), "number": np.arange(64)}))
    full = node.ring.nbytes
    drawn = np.concatenate([node.sample()["number"] for _ in range(3)])
    assert node.ring.nbytes < 0.35 * full
    left = np.setdiff1d(np.arange(64), drawn)
    assert node.rows()["number"].tolist() == left.tolist()
    copy = AdvancedReplayBuffer(
        size=64, batch_size=16, max_use=1, replace=False, storage=CompressedStorage(), seed=2
    )
    copy.load_state_dict(node.state_dict())
    assert np.array_equal(copy.rows()["obs"], node.rows()["obs"])
    node.clear()
    assert node.ring.nbytes < 0.1 * full


def test_columns_with_small_rows_are_not_compressed() -> None:
    ring = Ring(4, storage=CompressedStorage(least_row_bytes=900))
    ring.push({"obs": frames(4), "action": np.arange(4)})
    assert isinstance(ring.columns["obs"], CompressedColumn)
    assert isinstance(ring.columns["action"], np.ndarray)
    assert ring.take(np.array([2]))["action"].tolist() == [2]


def test_free_memory_is_checked_while_compressed_rows_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemAvailable:       300 kB\n")
    monkeypatch.setattr(resource_limits, "MEMORY_FILES", (info, tmp_path / "none"))
    monkeypatch.setattr(compressed, "CHECK_BYTES", 200_000)
    # More rows than could be allocated uncompressed.
    ring = Ring(10**6, storage=CompressedStorage())
    ring.push({"obs": frames(200, 256)})
    with pytest.raises(MemoryError, match="reduce `size`, or set `size_bytes`"):
        ring.push({"obs": frames(200, 256)})


def test_a_missing_codec_is_an_error_that_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    with pytest.raises(ImportError, match=r"pip install 'flowrl\[fast\]', or write `codec: zlib`"):
        compressed.row_codec("lz4")
    pack, unpack = compressed.row_codec("auto")
    assert unpack(pack(b"abc"), 3) == b"abc"


def test_lz4_is_loaded_at_its_first_use() -> None:
    code = "import flowrl.nodes.buffers.storage.compressed, sys; sys.exit('lz4' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def episodes(rng: np.random.Generator, lengths: list[int]) -> dict[str, np.ndarray]:
    """Make rows of episodes whose observations are two stacked frames."""
    obs, after = [], []
    for length in lengths:
        shown = rng.integers(0, 255, (length + 2, 20, 20), dtype=np.uint8)
        obs += [shown[k : k + 2] for k in range(length)]
        after += [shown[k + 1 : k + 3] for k in range(length)]
    return {"obs": np.array(obs), "next_obs": np.array(after), "row": np.arange(len(obs))}


@settings(deadline=None, max_examples=60)
@given(
    kilobytes=st.integers(8, 60),
    tokens=st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=30),
)
def test_deduplicated_observations_never_exceed_size_bytes(
    kilobytes: int, tokens: list[list[int]]
) -> None:
    rng = np.random.default_rng(0)
    ring = Ring(1000, f"{kilobytes}KB", deduplicator=FrameDeduplicator({"obs": 2}))
    pushed: list[dict[str, np.ndarray]] = []
    for lengths in tokens:
        rows = episodes(rng, lengths)
        try:
            ring.push(rows)
        except ValueError as error:
            assert "rows that are pushed together need" in str(error)  # noqa: PT017
            continue
        pushed.append(rows)
        assert ring.nbytes <= kilobytes * 1000
        assert 0 < ring.row_count <= ring.size
        held = ring.in_order()
        for name in ("obs", "next_obs", "row"):
            whole = np.concatenate([rows[name] for rows in pushed])
            assert np.array_equal(held[name], whole[len(whole) - ring.row_count :])


@pytest.mark.parametrize("kind", [NaiveReplayBuffer, AdvancedReplayBuffer])
def test_rows_without_frames_are_never_drawn(kind: Any) -> None:
    rng = np.random.default_rng(0)
    node = kind(size=1000, size_bytes="40KB", store_once=True, frames=2, batch_size=4)
    newest = 0
    for _ in range(60):
        rows = episodes(rng, [1, 2, 1])
        rows["row"] += newest
        newest += len(rows["row"])
        node.push(Batch(rows))
        drawn = node.sample()["row"]
        assert drawn.min() >= newest - node.count
    ring = node.ring
    assert node.count == ring.row_count < ring.size
    copy = kind(size=1000, size_bytes="40KB", store_once=True, frames=2, batch_size=4, seed=9)
    copy.load_state_dict(node.state_dict())
    for _ in range(5):
        assert np.array_equal(copy.sample()["row"], node.sample()["row"])
        rows = episodes(rng, [2, 2])
        node.push(Batch(dict(rows)))
        copy.push(Batch(dict(rows)))


KINDS: list[Any] = ["memory", "compressed", {"type": "compressed", "least_row_bytes": 1}]


def digest_of_run(out: Path, **settings: Any) -> str:
    sets = {"buffer.size": 1200, **{f"buffer.{key}": value for key, value in settings.items()}}
    return flowrl.load("cartpole_dqn", set=sets).run(train_iters=20, out=out).digest


@pytest.fixture(scope="module")
def default_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return digest_of_run(tmp_path_factory.mktemp("default") / "run")


@pytest.mark.slow
@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("storage", KINDS)
def test_a_run_has_the_same_digest_with_every_storage(
    storage: Any, once: bool, default_digest: str, tmp_path: Path
) -> None:
    assert digest_of_run(tmp_path / "run", storage=storage, store_once=once) == default_digest


class StrictStorage(MemoryStorage):
    """A user's storage, which refuses small buffers."""

    class Config(MemoryStorage.Config):
        least_rows: int = param(1, "the smallest size that is accepted", ge=1)

    def allocate(self, columns: Allocations, table: RingLayout) -> dict[str, ColumnStore]:
        if table.size < self.config.least_rows:
            raise ValueError(f"{table.size} rows are too few")
        return super().allocate(columns, table)


def test_a_graph_can_name_a_users_storage(tmp_path: Path) -> None:
    def graph(least_rows: int) -> Any:
        own = {
            "type": "tests.nodes.buffers.storage.test_storage_kinds:StrictStorage",
            "least_rows": least_rows,
        }
        return flowrl.load("cartpole_dqn", set={"buffer.storage": own, "buffer.size": 1200})

    assert graph(7).run(train_iters=2, out=tmp_path / "a").status == "finished"
    assert graph(0).check().problems[0].what == "nodes.buffer.storage.least_rows is 0"
    with pytest.raises(NodeError, match="1200 rows are too few"):
        graph(2000).run(train_iters=2, out=tmp_path / "b")


def test_mapped_and_compressed_rows_are_not_counted_as_memory() -> None:
    def counted(storage: Any) -> int:
        graph = flowrl.load("cartpole_dqn", set={"buffer.storage": storage, "buffer.size": 10_000})
        return int(graph.check().facts["buffer"].memory_bytes)

    metadata = counted({"type": "mapped", "path": "rows"})
    # Of each row: the age of its weights, and its window.
    assert metadata == counted("compressed") == 10_000 * (4 + 12)
    assert counted("memory") > 10_000 * 40


def test_a_queue_has_no_storage() -> None:
    graph = flowrl.load(
        {
            "extends": "cartpole_dqn",
            "nodes": {"buffer": {"type": "queue_buffer", "storage": "compressed"}},
        }
    )
    assert any("unknown key 'storage'" in p.what for p in graph.check().problems)
