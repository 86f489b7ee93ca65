"""Sockets that are cut, and invalid messages: no token is lost or duplicated, and no message does harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq

from flowrl.channels import ChannelLimits, SiteChannels, SiteConnections, UnsendableValue
from flowrl.channels.codec import encode
from flowrl.channels.keys import Keys, new_pair
from flowrl.channels.messages import CREDIT, RESEND, SLAB, TOKEN, HeaderCodec
from flowrl.core.errors import UsageError
from tests.channels.cutting_proxy import CuttingProxy
from tests.channels.site_pairs import RUN, SOCKETS, SitePair, open_pair, poll_until


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOCKETS)
def test_no_token_is_lost_duplicated_or_reordered_when_the_socket_is_cut(
    kind: str, tmp_path: Path
) -> None:
    proxies: list[CuttingProxy] = []

    def interpose(address: str) -> str:
        proxies.append(CuttingProxy(address, tmp_path))
        return proxies[0].address

    with open_pair(kind, tmp_path, interpose) as sites:
        sender, receiver = sites.open_channel(ChannelLimits(16))
        taken: list[int] = []

        def take() -> bool:
            while len(receiver):
                number, array = receiver.take()[0]
                assert (array == number % 251).all()
                taken.append(number)
            return sender.is_ready()

        for i in range(300):
            if i % 60 == 30:
                proxies[0].cut()
            if i in (100, 200):
                proxies[0].bytes_to_swallow = 1
            if not take():
                poll_and_probe_until(sites, take)
            sender.send((i, np.full(i * 300 % 50_000, i % 251, np.uint8)))
        poll_and_probe_until(sites, lambda: take() and len(taken) == 300)
        assert taken == list(range(300))
        assert proxies[0].cuts > 0
        assert proxies[0].swallowed > 0
        assert sender.statistics().resent > 0
    proxies[0].close()


def poll_and_probe_until(sites: SitePair, condition: Callable[[], bool]) -> None:
    """Poll both sites until the condition holds, and probe all channels now and then, as waits do."""
    tries = [0]
    ends = [*sites.a._senders.values(), *sites.b._receivers.values()]

    def step() -> bool:
        tries[0] += 1
        if tries[0] % 100 == 0:
            for end in ends:
                end.probe()
        return condition()

    sites.poll_until(step)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ipc", "curve"])
def test_a_wait_requests_lost_tokens(kind: str, tmp_path: Path) -> None:
    proxies: list[CuttingProxy] = []

    def interpose(address: str) -> str:
        proxies.append(CuttingProxy(address, tmp_path))
        return proxies[0].address

    with open_pair(kind, tmp_path, interpose) as sites:
        sender, receiver = sites.open_channel()
        sites.transfer(sender, receiver, ["the connection stands"])
        proxies[0].bytes_to_swallow = 1
        sender.send("swallowed")
        sites.a.flush()
        sites.poll_until(lambda: proxies[0].cuts > 0)

        def poll_both() -> bool:
            sites.a.poll()
            return receiver.is_ready()

        sites.b.wait_until(poll_both, [receiver], 5)  # this wait alone requests the token
        assert receiver.take()[0] == "swallowed"
        assert sender.statistics().resent == 1
    proxies[0].close()


def test_a_site_that_listens_again_receives_what_it_missed(tmp_path: Path) -> None:
    with open_pair("ipc", tmp_path) as sites:
        sender, receiver = sites.open_channel()
        sites.transfer(sender, receiver, ["before"])
        sites.b.close(drop=True)
        sender.send("while it is away")
        sites.a.flush()
        again = SiteConnections("b", RUN, epoch=1)
        again.listen(sites.addresses["b"])
        again.connect("a", sites.addresses["a"])
        sites.b = SiteChannels(again)
        fresh = sites.b.open_receiver("x", "a")
        refused = {("another epoch", "a"): 1}
        sites.poll_until(lambda: sites.b.connections.traffic().refused == refused)
        sites.a.replace_peer("b", sites.addresses["b"], 1)
        assert sites.transfer(sender, fresh, ["after"]) == ["after"]


def test_a_slab_of_an_earlier_epoch_is_refused(tmp_path: Path) -> None:
    with open_pair("shared", tmp_path) as sites:
        old, _ = sites.open_channel()
        old_site = sites.start_a_again()
        sites.b.replace_peer("a", sites.addresses["a"], 1)
        old.send(np.zeros(1_000_000, np.uint8))  # announces shared memory, and is sent without it
        old_site.flush()
        sites.poll_until(lambda: sites.b.connections.traffic().refused)
        assert sites.b.connections.traffic().refused.keys() == {("another epoch", "a")}
        memory = sites.b.connections._transports["ipc"].peer_memory  # type: ignore[attr-defined]
        assert len(memory["a"]) == 0


# messages that are refused


class Stranger:
    """A socket that sends any bytes."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.PUSH)
        self.socket.linger = 0
        self.socket.connect(address)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def close(self) -> None:
        self._context.destroy(0)


def token(channel: str = "x", epoch: int = 0, number: int = 0, value: object = 1) -> bytes:
    tree, _ = encode(value)
    return msgpack.packb([TOKEN, channel, epoch, number, None, tree, 0, 0])


SITE_A, STRANGER_HEADERS = HeaderCodec(RUN, "a"), HeaderCodec(RUN, "stranger")
BAD = {
    "not msgpack": (b"\xc1garbage", "malformed", "?"),
    "not a list": (msgpack.packb("text"), "malformed", "?"),
    "too short": (msgpack.packb([RUN, "a"]), "malformed", "?"),
    "a map": (msgpack.packb([RUN, "a", 0, {}, {1: 2}]), "malformed", "?"),
    "another run": (HeaderCodec(b"old", "a").header([token()], 0), "another run", "?"),
    "an unknown site": (STRANGER_HEADERS.header([token()], 0), "unknown site", "?"),
    "an unknown kind": (SITE_A.header([msgpack.packb([99])], 0), "malformed", "a"),
    "a frame that is no list": (SITE_A.header([msgpack.packb(7)], 0), "malformed", "a"),
    "a credit of words": (
        SITE_A.header([msgpack.packb([CREDIT, "x", 0, "all"])], 0),
        "malformed",
        "a",
    ),
    "a missing body": (SITE_A.header([token()], 50), "payload", "a"),
    "a value of no kind": (
        SITE_A.header([msgpack.packb([TOKEN, "x", 0, 0, None, [77], 0, 0])], 0),
        "kind in x",
        "a",
    ),
    "a clock of words": (
        SITE_A.header([msgpack.packb([TOKEN, "x", 0, 0, ["now"], 1, 0, 0])], 0),
        "clock in x",
        "a",
    ),
    "missing parts": (
        SITE_A.header([msgpack.packb([TOKEN, "x", 0, 0, None, [7, "|u1", [9], 0], [3], 0])], 0),
        "payload in x",
        "a",
    ),
    "unknown memory": (
        SITE_A.header(
            [msgpack.packb([TOKEN, "x", 0, 0, None, [7, "|u1", [9], 0], [0, 0, 9], 0])], 0
        ),
        "slab in x",
        "a",
    ),
    "credit for a token that was never sent": (
        SITE_A.header([msgpack.packb([CREDIT, "back", 0, 5])], 0),
        "credit",
        "a",
    ),
    "a resend request for a token that was never sent": (
        SITE_A.header([msgpack.packb([RESEND, "back", 0, 5])], 0),
        "resend request",
        "a",
    ),
    "a sender named as receiver": (SITE_A.header([token("back")], 0), "unknown channel", "a"),
    "no shared memory": (
        SITE_A.header([msgpack.packb([SLAB, 0, 1, 0, 4096, 1])], 0),
        "shared memory",
        "a",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_an_invalid_message_is_refused_and_counted(what: str, tmp_path: Path) -> None:
    head, reason, peer = BAD[what]
    with open_pair("ipc", tmp_path) as sites:
        sender, receiver = sites.open_channel()
        sites.b.open_sender("back", "a")
        stranger = Stranger(sites.addresses["b"])
        stranger.send(head)
        sites.poll_until(lambda: sites.b.connections.traffic().refused)
        assert sites.b.connections.traffic().refused == {(reason, peer): 1}
        assert sites.transfer(sender, receiver, [1, 2, 3]) == [1, 2, 3]
        stranger.close()


def test_foreign_memory_is_not_opened(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file, open_pair("shared", tmp_path) as sites:
        import os

        stranger = Stranger(sites.addresses["b"])
        item = [SLAB, 0, os.getpid(), file.fileno(), 4096, 1]
        stranger.send(SITE_A.header([msgpack.packb(item)], 0))
        sites.poll_until(lambda: sites.b.connections.traffic().refused)
        assert sites.b.connections.traffic().refused == {("slab", "a"): 1}
        stranger.close()


def test_a_replayed_message_is_dropped_and_counted(tmp_path: Path) -> None:
    with open_pair("ipc", tmp_path) as sites:
        _, receiver = sites.open_channel()
        stranger = Stranger(sites.addresses["b"])
        message = SITE_A.header([token(number=0), token(number=1)], 0)
        for _ in range(3):
            stranger.send(message)
        sites.poll_until(lambda: receiver.statistics().duplicates == 4)
        assert len(receiver) == 2
        stranger.close()


def test_more_tokens_than_the_channel_allows_are_refused(tmp_path: Path) -> None:
    with open_pair("ipc", tmp_path) as sites:
        _, receiver = sites.open_channel(ChannelLimits(2))
        stranger = Stranger(sites.addresses["b"])
        stranger.send(SITE_A.header([token(number=i) for i in range(3)], 0))
        sites.poll_until(lambda: sites.b.connections.traffic().refused)
        assert sites.b.connections.traffic().refused == {("over capacity", "a"): 1}
        assert len(receiver) == 2
        stranger.close()


def test_a_message_part_beyond_the_limit_closes_the_connection(tmp_path: Path) -> None:
    with open_pair("ipc", tmp_path, max_token_bytes=1 << 20) as sites:
        sender, receiver = sites.open_channel()
        stranger = Stranger(sites.addresses["b"])
        stranger.send(SITE_A.header([token()], 0), bytes(2 << 20))
        sites.poll_until(lambda: sites.b.connections.traffic().lost_connections == 1)
        assert not receiver.is_ready()
        assert sites.transfer(sender, receiver, ["fine"]) == ["fine"]
        stranger.close()


def test_a_token_beyond_the_limit_is_an_error_of_its_sender(tmp_path: Path) -> None:
    with open_pair("ipc", tmp_path, max_token_bytes=1 << 20) as sites:
        sender, receiver = sites.open_channel()
        with pytest.raises(
            UnsendableValue, match="channel 'x': cannot send a token of 2097152 bytes"
        ):
            sender.send(np.zeros(2 << 20, np.uint8))
        assert sites.transfer(sender, receiver, ["fine"]) == ["fine"]


# keys

UNUSED_ADDRESS = "tcp://127.0.0.1:1"


def curve_site(name: str, keys: Keys) -> SiteChannels:
    return SiteChannels(SiteConnections(name, RUN, keys=keys))


def test_a_site_with_an_unknown_key_is_rejected() -> None:
    one, two, other = new_pair(), new_pair(), new_pair()
    b = curve_site("b", Keys(*two, {"a": one[0]}))
    address = b.connections.listen("tcp://127.0.0.1:*")
    forger = curve_site("a", Keys(*other, {"b": two[0]}))
    forger.connections.connect("b", address)
    b.connections.connect("a", UNUSED_ADDRESS)
    receiver = b.open_receiver("x", "a")
    forger.open_sender("x", "b").send("let me in")
    forger.flush()
    poll_until(lambda: b.connections.traffic().refused.get(("handshake", "?")), b)
    assert not receiver.is_ready()
    for site in (b, forger):
        site.close(drop=True)


def test_a_site_with_the_wrong_server_key_cannot_connect() -> None:
    one, two, other = new_pair(), new_pair(), new_pair()
    b = curve_site("b", Keys(*two, {"a": one[0]}))
    address = b.connections.listen("tcp://127.0.0.1:*")
    a = curve_site("a", Keys(*one, {"b": other[0]}))
    a.connections.connect("b", address)
    a.open_sender("x", "b").send("let me in")
    a.flush()
    poll_until(lambda: b.connections.traffic().refused.get(("handshake", "?")), b)
    for site in (b, a):
        site.close(drop=True)


def test_a_known_site_cannot_pose_as_another() -> None:
    one, two, three = new_pair(), new_pair(), new_pair()
    b = curve_site("b", Keys(*two, {"a": one[0], "c": three[0]}))
    address = b.connections.listen("tcp://127.0.0.1:*")
    liar = curve_site("a", Keys(*three, {"b": two[0]}))  # site c, which claims to be a
    liar.connections.connect("b", address)
    for name in "ac":
        b.connections.connect(name, UNUSED_ADDRESS)
    receiver = b.open_receiver("x", "a")
    liar.open_sender("x", "b").send("I am a")
    liar.flush()
    poll_until(lambda: b.connections.traffic().refused, b)
    assert b.connections.traffic().refused == {("another site's key", "?"): 1}
    assert not receiver.is_ready()
    for site in (b, liar):
        site.close(drop=True)


def test_a_public_address_needs_keys() -> None:
    connections = SiteConnections("a", RUN)
    with pytest.raises(
        UsageError, match=r"tcp://0\.0\.0\.0:\*: other machines can reach this address"
    ):
        connections.listen("tcp://0.0.0.0:*")
    connections.close()


def test_an_address_in_use_is_reported() -> None:
    connections = SiteConnections("a", RUN)
    address = connections.listen("tcp://127.0.0.1:*")
    with pytest.raises(UsageError, match="cannot listen: Address already in use"):
        connections.listen(address)
    connections.close()
