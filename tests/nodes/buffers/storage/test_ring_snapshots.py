"""What a ring gives to a snapshot: rows at their places, of which only pieces with new rows are copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.core import array_pieces
from flowrl.core.batch import Array
from flowrl.core.errors import NodeError
from flowrl.core.saved_state import SavedState
from flowrl.nodes.buffers.storage import frame_pool
from flowrl.nodes.buffers.storage.compressed import CompressedStorage
from flowrl.nodes.buffers.storage.deduplication import FrameDeduplicator
from flowrl.nodes.buffers.storage.mapped import MappedStorage
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.nodes.buffers.storage.storage import MemoryStorage, Storage
from flowrl.runtime import stored_pieces
from flowrl.runtime.part_hashes import digest_of_parts, hash_piece
from flowrl.runtime.stored_pieces import PiecePath, StoredPieces, live_arrays

SIZE, ROW_BYTES = 120, 24
STORAGES: Mapping[str, Callable[[Path], Storage]] = {
    "memory": lambda folder: MemoryStorage(),
    "mapped": lambda folder: MappedStorage(path=str(folder / "rows"), flush_every_rows=50),
    "compressed": lambda folder: CompressedStorage(codec="zlib", least_row_bytes=8),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 100 bytes, which end within rows."""
    monkeypatch.setattr(array_pieces, "PIECE_BYTES", 100)
    monkeypatch.setattr(stored_pieces, "LARGE_BYTES", 1)
    monkeypatch.setattr(frame_pool, "BLOCK_PLACES", 8)


class Snapshots:
    """Saves a ring again and again, and keeps what a disk would have."""

    def __init__(self, ring: Ring) -> None:
        self.ring, self.stored, self.rounds = ring, StoredPieces(), 0
        self._disk: dict[str, Array] = {}  # pieces by their hashes

    def save(self, is_stored: bool = True) -> tuple[dict[str, Any], int]:
        """Save the ring; return its state as a reader would find it, and the number of copied pieces."""
        self.rounds += 1
        saved = self.stored.copy_changed(self.rounds, self.live())["ring"]
        full = {}
        for name, array in saved.pieces.items():
            stored = {index: self._disk[sha] for index, sha in array.stored.items()}
            full[name] = replace(array, pieces={**stored, **array.pieces}, stored={})
        if is_stored:
            copied = {
                PiecePath("ring", name, index): piece
                for name, array in saved.pieces.items()
                for index, piece in array.pieces.items()
            }
            self.stored.set_stored(self.rounds, self._write(copied))
        found = SavedState(saved.arrays, saved.text, full)
        assert digest_of_parts({"ring": found}) == digest_of_parts({"ring": self.copied()})
        copied = sum(len(array.pieces) for array in saved.pieces.values())
        return found.state_dict()["state"], copied

    def copy_ahead(self, is_stored: bool = True) -> None:
        """Copy some of the pieces that changed."""
        live = live_arrays(self.live())
        copied = self.stored.copy_ahead(live, [*self.stored.changed(live)][:7])
        if is_stored:
            self.stored.set_stored_ahead(self._write(copied.pieces))

    def _write(self, pieces: Mapping[PiecePath, Array]) -> dict[PiecePath, str]:
        hashes = {path: hash_piece(piece) for path, piece in pieces.items()}
        self._disk |= {hashes[path]: piece for path, piece in pieces.items()}
        return hashes

    def live(self) -> dict[str, SavedState]:
        return {"ring": SavedState.of({"state": self.ring.state_dict(live=True)})}

    def copied(self) -> SavedState:
        return SavedState.of({"state": self.ring.state_dict()})


def rows(first: int, count: int) -> dict[str, Array]:
    numbers = np.arange(first, first + count)
    obs = np.repeat(numbers, 3).reshape(count, 3).astype(np.float64)
    return {"obs": obs, "next_obs": obs + 1, "reward": numbers.astype(np.float32)}


def make_ring(storage: Storage, once: bool, size: int = SIZE) -> Ring:
    deduplicator = FrameDeduplicator({"obs": 1}) if once else None
    return Ring(
        size,
        storage=storage,
        deduplicator=deduplicator,
        metadata={"use": "int32", "train_iters": "int32"},
    )


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_copied_with_what_is_stored_is_the_whole_state(
    storage: str, once: bool, tmp_path: Path
) -> None:
    """With random pushes, which also exceed the size, clears, discarded rows, and copies that are not stored."""
    rng = np.random.default_rng(0)
    ring = make_ring(STORAGES[storage](tmp_path), once)
    snapshots, number = Snapshots(ring), 0
    for step in range(40):
        count = int(rng.choice([0, 1, 7, 30, SIZE, SIZE + 5], p=[0.1, 0.2, 0.3, 0.3, 0.05, 0.05]))
        if once:
            count = min(count, SIZE)
        ring.push(rows(number, count), use=step, train_iters=step)
        ring.metadata["use"][: ring.used_places] += 1  # as draws do
        number += count + int(rng.integers(2))
        if rng.random() < 0.05:
            ring.clear()
        if rng.random() < 0.1 and not once:
            ring.discard(rng.integers(0, SIZE, 3))
        if rng.random() < 0.5:
            snapshots.copy_ahead(is_stored=bool(rng.random() < 0.8))
        elif rng.random() < 0.6:
            state, _ = snapshots.save(is_stored=bool(rng.random() < 0.6))
    state, _ = snapshots.save()
    copy = make_ring(MemoryStorage(), once)
    copy.load_state_dict(state)
    assert digest_of_parts({"ring": Snapshots(copy).copied()}) == digest_of_parts(
        {"ring": snapshots.copied()}
    )
    for name, column in ring.in_order().items():
        np.testing.assert_array_equal(copy.in_order()[name], column)
    ring.close()


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("storage", STORAGES)
def test_only_pieces_with_new_rows_are_copied_when_a_ring_is_full(
    storage: str, once: bool, tmp_path: Path
) -> None:
    ring = make_ring(STORAGES[storage](tmp_path), once)
    snapshots = Snapshots(ring)
    ring.push(rows(0, SIZE), use=0)
    ring.push(rows(SIZE, 50), use=0)
    _, first = snapshots.save()
    assert snapshots.save()[1] == 0
    ring.push(rows(SIZE + 50, 4), use=0)
    _, later = snapshots.save()
    assert 3 <= later <= 9 < first / 5
    ring.close()


def test_rows_of_a_new_ring_are_copied_though_their_numbers_are_those_of_an_old_one() -> None:
    old, new = make_ring(MemoryStorage(), False), make_ring(MemoryStorage(), False)
    snapshots = Snapshots(old)
    old.push(rows(0, SIZE), use=0)
    snapshots.save()
    new.push(rows(7, SIZE), use=0)
    snapshots.ring = new
    state, _ = snapshots.save()
    assert state["columns"]["reward"][0] == 7


def test_a_ring_of_another_size_takes_the_rows_the_oldest_first() -> None:
    ring = make_ring(MemoryStorage(), False)
    ring.push(rows(0, SIZE), use=0)
    ring.push(rows(SIZE, 50), use=0)
    larger = make_ring(MemoryStorage(), False, SIZE + 40)
    larger.load_state_dict(Snapshots(ring).save()[0])
    larger.push(rows(SIZE + 50, 60), use=0)
    assert larger.in_order()["reward"].tolist() == [*range(70, 230)]


def full_ring_state() -> dict[str, Any]:
    ring = make_ring(MemoryStorage(), False)
    ring.push(rows(0, SIZE + 30), use=0)
    return ring.state_dict()


def test_a_ring_in_memory_may_keep_the_arrays_that_it_loads() -> None:
    state, ring = full_ring_state(), make_ring(MemoryStorage(), False)
    ring.load_state_dict(state, may_keep=True)
    for name, column in state["columns"].items():
        assert ring.columns[name] is column
    ring.push(rows(SIZE + 30, 20), use=1)
    assert ring.in_order()["reward"].tolist() == [*range(50, SIZE + 50)]


@pytest.mark.parametrize(
    ("why", "storage"),
    [
        ("not allowed", "memory"),
        ("read-only", "memory"),
        ("another size", "memory"),
        ("another storage", "mapped"),
        ("another storage", "compressed"),
    ],
)
def test_arrays_that_a_ring_may_not_keep_are_copied(why: str, storage: str, tmp_path: Path) -> None:
    state = full_ring_state()
    for column in state["columns"].values():
        column.flags.writeable = why != "read-only"
    before = {name: column.copy() for name, column in state["columns"].items()}
    size = SIZE + 7 if why == "another size" else SIZE
    ring = make_ring(STORAGES[storage](tmp_path), False, size)
    ring.load_state_dict(state, may_keep=why != "not allowed")
    ring.push(rows(SIZE + 30, 20), use=1)
    assert ring.in_order()["reward"].tolist()[-SIZE:] == [*range(50, SIZE + 50)]
    for name, column in state["columns"].items():
        np.testing.assert_array_equal(column, before[name])
    ring.close()


@pytest.mark.parametrize(("copies", "is_refused"), [(1, False), (2, True)])
def test_copies_that_do_not_fit_into_free_memory_are_not_made(
    monkeypatch: pytest.MonkeyPatch, copies: int, is_refused: bool
) -> None:
    ring = make_ring(MemoryStorage(), False)
    ring.push(rows(0, SIZE), use=0)
    live = {"node/buffer": SavedState.of({"state": ring.state_dict(live=True)})}
    copied = StoredPieces().copy_changed(1, live)["node/buffer"].pieces.values()
    needed = sum(piece.nbytes for array in copied for piece in array.pieces.values())
    monkeypatch.setattr(stored_pieces, "free_memory_bytes", lambda: needed * 3 // 2)
    refused = pytest.raises(NodeError, match="GB are free; save snapshots more often")
    with refused if is_refused else nullcontext():
        StoredPieces(copies).copy_changed(1, live)
