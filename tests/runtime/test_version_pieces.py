"""Large versions are cut into pieces, and are the same when they are joined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from flowrl.channels import InboxRegistry, SiteChannels, SiteConnections
from flowrl.core.batch import Array
from flowrl.core.state import EMPTY_CLOCK, Clock, Count, State
from flowrl.runtime.remote import version_pieces
from flowrl.runtime.remote.version_pieces import (
    MAX_HELD,
    MIN_PIECE_BYTES,
    PIECES,
    CutVersion,
    JoinedVersion,
    VersionInput,
    cut_version,
    push_in_pieces,
)
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.site_state import SiteState
from flowrl.runtime.streams import Token

CLOCK = Clock({"l": Count(3, 1, 2)})
RNG = np.random.default_rng(0)


def numbers(*shape: int, dtype: str = "f4") -> Array:
    array: Array = np.array(100 * RNG.standard_normal(shape), dtype)
    array.flags.writeable = False
    return array


ARRAYS: dict[str, Array] = {
    "first": numbers(300, 7),
    "scalar": numbers(),
    "none": numbers(0, 4),
    "transposed": numbers(40, 9).T,
    "second": numbers(1000, dtype="f8"),
    "int": numbers(3, 3, dtype="i8"),
    "last": numbers(17, 13),
}


def joined(values: list[Any]) -> State:
    begin, *pieces = values
    version = JoinedVersion(CutVersion(*begin))
    found = [version.add(piece) for piece in pieces]
    assert found[:-1] == [None] * (len(found) - 1)
    assert found[-1] is not None
    return found[-1]


@pytest.mark.parametrize("least", [1, 8, 100, 1000])
def test_a_version_that_was_cut_is_the_same(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_pieces, "MIN_PIECE_BYTES", least)
    state = State(ARRAYS, {"epsilon": 0.5}, 7, CLOCK)
    values = list(cut_version(state))
    assert 3 <= len(values) <= PIECES + 3
    found = joined(values)
    assert list(found.arrays) == list(ARRAYS)
    assert (found.command, found.version, found.clock) == ({"epsilon": 0.5}, 7, CLOCK)
    for name, array in ARRAYS.items():
        same = found.arrays[name]
        assert (same.dtype, same.shape, same.strides) == (array.dtype, array.shape, array.strides)
        assert not same.flags.writeable
        np.testing.assert_array_equal(same, array)


def test_pieces_are_of_about_equal_size() -> None:
    sizes = (5 << 20, 100, 3 << 20)
    state = State({str(n): np.zeros(size, np.uint8) for n, size in enumerate(sizes)})
    _, *pieces = cut_version(state)
    assert [sum(a.nbytes for _, a in piece.values()) for piece in pieces] == pytest.approx(  # type: ignore[union-attr]
        [sum(sizes) / PIECES] * PIECES, rel=0.01
    )


@pytest.mark.parametrize(
    "state", [None, State({}), State({"w": np.zeros(MIN_PIECE_BYTES, np.uint8)})]
)
def test_a_small_version_is_sent_as_it_is(state: State | None) -> None:
    assert list(cut_version(state)) == [state]


class Versions:
    """A sender of versions in pieces, and the queue of their reader, in the thread of the test."""

    def __init__(self) -> None:
        inboxes: InboxRegistry = {}
        connections = {name: SiteConnections(name, inboxes=inboxes) for name in "ab"}
        for name, peer in ("ab", "ba"):
            connections[name].connect(peer, connections[peer].inproc_address)
        self.a, self.b = (SiteChannels(connections[name]) for name in "ab")
        self.sender, receiver = self.a.open_sender("w", "b"), self.b.open_receiver("w", "a")
        waits = SiteWaits(self.b, SiteState())
        self.queue = VersionInput(waits, receiver, waits.on_input("c", "w", receiver))
        self.push = push_in_pieces(lambda token: self.sender.send(*token))

    def exchange(self) -> None:
        for _ in range(3):
            for site in (self.a, self.b):
                site.drain()
                site.flush()

    def close(self) -> None:
        self.a.close(drop=True)
        self.b.close(drop=True)


@pytest.fixture
def versions() -> Iterator[Versions]:
    found = Versions()
    yield found
    found.close()


def state(number: int) -> State:
    return State({"w": np.full(1 << 20, number, np.float32)}, {}, number)


def test_a_queue_joins_versions_in_order(versions: Versions) -> None:
    sent: list[Token] = [(state(0), CLOCK), (None, EMPTY_CLOCK), (State({}, {}, 2), EMPTY_CLOCK)]
    for token in sent:
        versions.push(token)
    versions.exchange()
    taken = list(versions.queue.take_arrived())
    assert [value and value.version for value, _ in taken] == [0, None, 2]
    np.testing.assert_array_equal(taken[0][0].arrays["w"], np.zeros(1 << 20))
    assert taken[0][1].counts == CLOCK.counts


def test_a_version_is_not_there_before_its_last_piece(versions: Versions) -> None:
    begin, *pieces = cut_version(state(5))
    for value in (begin, *pieces[:-1]):
        versions.sender.send(value)
    versions.exchange()
    assert not len(versions.queue)
    assert versions.sender.all_taken  # so a relay need not keep them
    versions.sender.send(pieces[-1])
    versions.exchange()
    assert versions.queue.popleft()[0].version == 5


def test_a_queue_that_nobody_reads_holds_few_versions(versions: Versions) -> None:
    for number in range(MAX_HELD + 2):
        versions.push((state(number), EMPTY_CLOCK))
    versions.exchange()
    assert len(versions.queue) == MAX_HELD
    assert not versions.sender.all_taken
    taken = list(versions.queue.take_arrived())
    assert [value.version for value, _ in taken] == list(range(MAX_HELD + 2))
    versions.exchange()
    assert versions.sender.all_taken
