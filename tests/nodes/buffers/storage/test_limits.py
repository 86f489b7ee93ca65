"""Limits of a buffer: rows, bytes and free memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Column
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.machine import resource_limits
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.buffers.storage import limits
from flowrl.nodes.buffers.storage.mapped import MappedStorage
from flowrl.nodes.buffers.storage.ring import Ring

IMAGES = {"obs": Column("uint8", (100,))}


def test_the_smaller_limit_applies() -> None:
    assert limits.max_rows(50, "1KB", 10) == 50
    assert limits.max_rows(500, "1KB", 10) == 100
    with pytest.raises(ValueError, match="a row takes 2000 bytes, but size_bytes is 1KB"):
        limits.max_rows(500, "1KB", 2000)


def test_a_ring_limited_in_bytes_holds_the_rows_that_fit() -> None:
    ring = Ring(1000, "1KB", {"train_iters": "int32"})
    ring.push({"obs": np.zeros((30, 96), np.uint8)}, train_iters=7)
    assert (ring.size, ring.row_count) == (10, 10)
    assert ring.metadata["train_iters"].tolist() == [7] * 10


def test_a_buffer_larger_than_free_memory_is_refused_before_it_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemTotal: 9 kB\nMemAvailable:       2 kB\n")
    monkeypatch.setattr(resource_limits, "MEMORY_FILES", (info, tmp_path / "none"))
    small, large = Ring(20), Ring(21)
    small.push({"obs": np.zeros((1, 100), np.uint8)})
    with pytest.raises(MemoryError, match=r"would take 0\.0 GB.*reduce `size`"):
        large.push({"obs": np.zeros((1, 100), np.uint8)})
    assert large.columns == {}


def test_a_state_larger_than_free_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Ring(20, storage=MappedStorage(path=str(tmp_path / "rows")))
    ring.push({"obs": np.zeros((15, 1000), np.uint8)})
    info = tmp_path / "meminfo"
    info.write_text("MemAvailable:       14 kB\n")
    monkeypatch.setattr(resource_limits, "MEMORY_FILES", (info, tmp_path / "none"))
    with pytest.raises(MemoryError, match=r"a copy of the buffer's rows would take"):
        ring.state_dict()
    info.write_text("MemAvailable:       16 kB\n")
    assert len(ring.state_dict()["columns"]["obs"]) == 15
    ring.close()


def test_without_a_report_of_free_memory_every_allocation_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_limits, "MEMORY_FILES", (tmp_path / "a", tmp_path / "b"))
    assert resource_limits.free_memory_bytes() is None
    limits.require_memory(10**18)


def describe(**params: object) -> NaiveReplayBuffer:
    config = NaiveReplayBuffer.Config(**params)
    return NaiveReplayBuffer.describe(config, Surroundings({"data": IMAGES}, {}, frozenset()))


def test_describe_states_the_memory_and_refuses_limits_that_are_too_small() -> None:
    assert describe(size=1000, size_bytes="10KB", batch_size=8).memory_bytes == 96 * 104
    with pytest.raises(
        UnsoundError, match="a row takes 104 bytes, but size_bytes is 50B"
    ) as raised:
        describe(size_bytes="50B", batch_size=1)
    assert raised.value.key == "size_bytes"
    with pytest.raises(UnsoundError, match="batches of 64 rows are drawn from 9") as raised:
        describe(size_bytes="1KB")
    assert raised.value.key == "size_bytes"


@pytest.mark.parametrize("wrong", [np.zeros((2, 3), np.float64), np.zeros((2, 4), np.float32)])
def test_a_changed_column_is_refused_and_nothing_is_written(wrong: np.ndarray) -> None:
    ring = Ring(4)
    ring.push({"a": np.ones(2), "b": np.ones((2, 3), np.float32)})
    with pytest.raises(
        ValueError, match=r"column 'b' has rows of .*; the buffer holds float32\[3\]"
    ):
        ring.push({"a": np.zeros(2), "b": wrong})
    assert ring.row_count == 2
    assert ring.columns["a"][:2].tolist() == [1, 1]


def test_row_numbers_are_never_reused() -> None:
    ring = Ring(4)
    for start in (0, 3, 6):
        ring.push({"value": np.arange(start, start + 3)})
    numbers = np.arange(5, 9)
    assert ring.holds(np.arange(3, 11)).tolist() == [False, False, *[True] * 4, False, False]
    places = ring.places_of(numbers)
    assert ring.take(places)["value"].tolist() == numbers.tolist()
    assert ring.numbers_of(places).tolist() == numbers.tolist()
    ring.clear()
    ring.push({"value": np.array([9, 10])})
    assert ring.numbers_of(np.arange(2)).tolist() == [9, 10]
    assert ring.places_of(np.array([9, 10])).tolist() == [0, 1]
    assert not ring.holds(numbers).any()


def test_a_state_that_is_loaded_into_a_larger_ring_is_continued_in_order() -> None:
    ring, larger = Ring(3), Ring(5)
    ring.push({"value": np.arange(4)})
    larger.load_state_dict(ring.state_dict())
    larger.push({"value": np.array([4, 5, 6])})
    assert sorted(larger.take(np.arange(5))["value"]) == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("given", "key"), [({"size": 99}, "size"), ({"size_bytes": "10KB"}, "size_bytes")]
)
def test_a_buffer_smaller_than_a_token_is_refused(given: dict[str, Any], key: str) -> None:
    config = NaiveReplayBuffer.Config(batch_size=8, **given)
    arriving = Surroundings({"data": IMAGES}, {}, frozenset(), rows={"data": 100})
    with pytest.raises(
        UnsoundError, match="100 rows arrive with a token, and the newest"
    ) as raised:
        NaiveReplayBuffer.describe(config, arriving)
    assert raised.value.key == key
    NaiveReplayBuffer.describe(NaiveReplayBuffer.Config(batch_size=8, size=100), arriving)
