"""Large buffers are copied ahead of a snapshot in pieces, while rows arrive, so that little is left for its cut."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from flowrl.core import array_pieces
from flowrl.core.array_pieces import ArrayPieces
from flowrl.core.saved_state import SavedState
from flowrl.nodes.buffers.storage.ring import Ring
from flowrl.runtime import copies_ahead, stored_pieces
from flowrl.runtime.copies_ahead import CopiesAhead
from flowrl.runtime.part_hashes import digest_of_parts, hash_piece
from flowrl.runtime.snapshot_schedule import SnapshotSchedule
from flowrl.runtime.stored_pieces import (
    LiveArrays,
    PiecePath,
    PiecesAhead,
    StoredPieces,
    live_arrays,
)
from tests.manual_clock import ManualClock

SIZE = 1000  # rows of 8 bytes, in 80 pieces
PIECE, COPY, REST = 100, 300, 700  # bytes


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_pieces, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(stored_pieces, "LARGE_BYTES", 1)
    monkeypatch.setattr(copies_ahead, "COPY_AHEAD_BYTES", COPY)
    monkeypatch.setattr(copies_ahead, "REST_BYTES", REST)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    made = ManualClock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


class Site:
    """A site with a ring, whose copies are written when `store` is called."""

    def __init__(self) -> None:
        self.ring, self.stored = Ring(SIZE), StoredPieces()
        self.ahead = CopiesAhead(self.stored, self._read, self._write)
        self.sent: list[PiecesAhead] = []
        self.reads = 0
        self._number = 0

    def push(self, rows: int) -> None:
        self.ring.push({"n": np.arange(self._number, self._number + rows)})
        self._number += rows

    def store(self) -> None:
        self.ahead.on_stored({path: hash_piece(p) for path, p in self.sent[-1].pieces.items()})

    def live(self) -> dict[str, SavedState]:
        return {"node/b": SavedState.of(self.ring.state_dict(live=True))}

    def save(self) -> ArrayPieces:
        """Save a snapshot; its bytes must be those of the ring."""
        saved = self.stored.copy_changed(1, self.live())
        whole = {"node/b": SavedState.of(self.ring.state_dict())}
        assert digest_of_parts(saved) == digest_of_parts(whole)
        return saved["node/b"].pieces["columns/n"]

    def _read(self) -> LiveArrays:
        self.reads += 1
        return live_arrays(self.live())

    def _write(self, copied: PiecesAhead) -> None:
        assert sum(piece.nbytes for piece in copied.pieces.values()) <= COPY
        self.sent.append(copied)


def test_few_pieces_are_left_for_the_snapshot_while_rows_overwrite_others() -> None:
    site = Site()
    site.push(SIZE + 300)
    site.ahead.begin()
    while not site.ahead.is_done:
        sent = len(site.sent)
        assert sent < 60
        site.ahead.proceed()
        assert len(site.sent) == sent  # the last pieces are still being written
        site.store()
        site.push(5)
        site.ahead.proceed()
    array = site.save()
    assert array.count == 80
    assert 1 <= len(array.pieces) <= REST / PIECE
    assert site.reads < 5


def test_rows_that_are_overwritten_while_their_copy_is_written_are_copied_again() -> None:
    site = Site()
    site.push(SIZE)
    site.ahead.begin()
    site.push(10)
    site.store()
    site.ahead.end()
    assert site.save().pieces.keys() == {0, *range(3, 80)}


def test_a_sweep_that_leaves_as_much_as_the_one_before_is_the_last_one() -> None:
    """Rows arrive faster than the disk takes them."""
    site = Site()
    site.push(SIZE)
    site.ahead.begin()
    while not site.ahead.is_done:
        assert len(site.sent) < 60
        site.push(SIZE)
        site.store()
        site.ahead.proceed()
    assert sum(len(copied.pieces) for copied in site.sent) == 80
    assert len(site.save().pieces) == 80


def test_pieces_that_cannot_be_written_end_the_copying_for_a_while(
    clock: ManualClock,
) -> None:
    site = Site()
    site.push(SIZE)
    site.ahead.begin()
    site.ahead.on_stored(None)
    site.ahead.proceed()
    assert (site.ahead.has_failed, site.ahead.is_done, len(site.sent)) == (True, False, 1)
    assert len(site.save().pieces) == 80
    site.ahead.end()
    site.ahead.begin()
    assert len(site.sent) == 1
    clock.now_s += copies_ahead.CHECK_S
    site.ahead.proceed()
    assert len(site.sent) == 2


def test_a_small_buffer_is_left_to_the_snapshot() -> None:
    site = Site()
    site.push(REST // 8)
    site.ahead.begin()
    assert site.ahead.is_done
    assert not site.sent


def test_what_arrives_until_a_known_round_is_copied_in_further_sweeps(
    clock: ManualClock,
) -> None:
    site = Site()
    site.push(50)
    site.ahead.begin()
    site.push(200)
    site.ahead.proceed()
    assert site.ahead.is_done
    assert not site.sent
    clock.now_s += copies_ahead.CHECK_S
    while site.ahead.can_proceed:
        site.ahead.proceed()
        if site.sent:
            site.store()
    assert len(site.save().pieces) == 0


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ({}, set[int]()),
        ({"known": [8, 12]}, {4, 5, 6, 7, 10, 11}),
        ({"every_rounds": 10}, {5, 6, 7, 8, 9}),
        ({"every_rounds": 1}, {*range(1, 12)}),
        ({"every_s": 0.0}, {*range(1, 12)}),
    ],
)
def test_copies_are_wanted_before_a_snapshot_is_due(schedule: Any, wanted: set[int]) -> None:
    made = SnapshotSchedule(**schedule)
    assert {n for n in range(1, 12) if made.wants_copies_ahead(n)} == wanted
    made.is_busy = True
    assert not any(made.wants_copies_ahead(n) for n in range(1, 12))


def test_a_snapshot_waits_for_its_copies_unless_it_is_of_a_known_round() -> None:
    regular = SnapshotSchedule(every_rounds=3)
    assert regular.due_within(1, 4, is_copied_ahead=False) == set()
    assert regular.due_within(5, 9) == {6, 9}
    schedule = SnapshotSchedule(known=[5])
    schedule.request()
    assert schedule.wants_copies_ahead(1)
    assert schedule.due_within(1, 4, is_copied_ahead=False) == set()
    assert schedule.due_within(4, 8, is_copied_ahead=False) == {5}
    schedule.request()
    assert schedule.due_within(6, 8) == {6}
    schedule.request()
    schedule.postpone()
    assert schedule.due_within(9, 9) == set()


def test_hashes_of_pieces_that_were_not_copied_last_say_nothing() -> None:
    site = Site()
    site.push(SIZE)
    site.ahead.begin()
    copied = {path.number for path in site.sent[-1].pieces}
    site.ahead.on_stored({PiecePath("node/b", "columns/n", n): "hash" for n in range(80)})
    assert site.stored.changed(live_arrays(site.live())).keys() == {
        PiecePath("node/b", "columns/n", n) for n in {*range(80)} - copied
    }
