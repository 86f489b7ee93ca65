"""A relay passes on the versions of a state, holds their sender back for slow takers, and requests what was lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from flowrl.channels import (
    ChannelLimits,
    InboxRegistry,
    Receiver,
    Sender,
    SiteChannels,
    SiteConnections,
    WaitTimeout,
)
from flowrl.core.state import State
from flowrl.runtime.remote.state_relay import NewestStateRelay, StateRelay

PEERS = {"source": ("relay",), "relay": ("source", "a", "b"), "a": ("relay",), "b": ("relay",)}
TURNS = 200  # of 10 ms, in which all sites process what has arrived


class RelayedChannels:
    """A source, its relay, and two takers, in the thread of the test."""

    def __init__(self, kind: type[StateRelay], tokens: int) -> None:
        inboxes: InboxRegistry = {}
        connections = {name: SiteConnections(name, inboxes=inboxes) for name in PEERS}
        for name, peers in PEERS.items():
            for peer in peers:
                connections[name].connect(peer, connections[peer].inproc_address)
        self.sites = {name: SiteChannels(connections[name]) for name in PEERS}
        limits, relay = ChannelLimits(tokens=tokens), self.sites["relay"]
        self.source = self.sites["source"].open_sender("w@relay", "relay", limits)
        received = relay.open_receiver("w@relay", "source", limits)
        self.sent = {taker: relay.open_sender(f"w#{taker}", taker, limits) for taker in "ab"}
        self.takers: dict[str, Receiver] = {
            taker: self.sites[taker].open_receiver(f"w#{taker}", "relay", limits) for taker in "ab"
        }
        self.relay = kind(relay, received, [*self.sent.values()])

    def process(self, turns: int = 2) -> None:
        """Let each site process what has arrived, so often. The relay waits for something else."""
        for _ in range(turns):
            for name, site in self.sites.items():
                with suppress(WaitTimeout):
                    if name == "relay":
                        site.wait_until(lambda: False, (), 0.01)
                site.drain()
                site.flush()

    def process_until_taken(self, taker: str, count: int) -> list[int]:
        found: list[int] = []
        for _ in range(TURNS):
            self.process(1)
            found += self.take(taker)
            if len(found) == count:
                return found
        raise AssertionError(f"{taker} has taken {found} of {count} versions")

    def take(self, taker: str) -> list[int]:
        """Take what has arrived at a taker, and return the numbers of the versions; -1 if there is no new one."""
        found = []
        while len(self.takers[taker]):
            state = self.takers[taker].take()[0]
            found.append(-1 if state is None else state.version)
        self.sites[taker].flush()
        return found

    def close(self) -> None:
        for site in self.sites.values():
            site.close(drop=True)


@pytest.fixture
def relayed(request: pytest.FixtureRequest) -> Iterator[RelayedChannels]:
    """Channels with room for two versions, or as many as the test says."""
    found = RelayedChannels(*getattr(request, "param", (StateRelay, 2)))
    yield found
    found.close()


def version(number: int) -> State:
    return State({}, {}, version=number)


def lose_next(sender: Sender) -> None:
    """Lose the next frame that a sender sends."""
    connection, lost = sender._connection, list[object]()
    usual = connection.send

    def send(packed: object) -> None:
        if lost:
            usual(packed)
        lost.append(packed)

    connection.send = send  # type: ignore[method-assign]


def test_all_takers_receive_every_version_in_order(relayed: RelayedChannels) -> None:
    for token in (version(0), None, version(2)):
        relayed.process()
        relayed.source.send(token)
    relayed.process()
    assert [relayed.take(taker) for taker in "ab"] == [[0, -1], [0, -1]]
    relayed.process(3)
    assert [relayed.take(taker) for taker in "ab"] == [[2], [2]]


def test_the_slowest_taker_holds_back_the_source(relayed: RelayedChannels) -> None:
    sent = 0
    for _ in range(8):
        relayed.process()
        relayed.take("a")
        while relayed.source.is_ready():
            relayed.source.send(version(sent))
            sent += 1
    assert sent == 4  # b has room for two versions, and the relay for two more
    assert relayed.process_until_taken("b", 4) == [0, 1, 2, 3]
    relayed.process(3)
    assert relayed.source.is_ready()


@pytest.mark.parametrize("relayed", [(NewestStateRelay, 1)], indirect=True)
def test_a_slow_taker_of_the_newest_version_holds_back_nobody(relayed: RelayedChannels) -> None:
    taken = []
    for number in range(5):
        assert relayed.source.is_ready()
        relayed.source.send(version(number))
        relayed.process(3)
        taken += relayed.take("a")
        relayed.process(3)
    assert taken == [0, 1, 2, 3, 4]
    assert relayed.process_until_taken("b", 2) == [0, 4]


def test_a_version_that_was_lost_is_requested_again(relayed: RelayedChannels) -> None:
    """No wait of the relay is for its source."""
    lose_next(relayed.source)
    relayed.source.send(version(0))
    relayed.process(3)
    assert relayed.take("a") == []
    relayed.relay.begin()
    assert relayed.process_until_taken("a", 1) == [0]


@pytest.mark.slow
def test_room_of_a_taker_that_the_relay_did_not_hear_of_is_requested(
    relayed: RelayedChannels,
) -> None:
    relayed.relay.begin()
    for number in range(2):
        relayed.source.send(version(number))
    relayed.process(3)
    connection = relayed.takers["a"]._connection
    connection.send_frame = lambda *frame: None  # type: ignore[method-assign]
    assert [relayed.take(taker) for taker in "ab"] == [[0, 1], [0, 1]]
    relayed.process(3)
    assert not relayed.sent["a"].is_ready()
    del connection.send_frame
    relayed.source.send(version(2))
    assert relayed.process_until_taken("a", 1) == [2]
