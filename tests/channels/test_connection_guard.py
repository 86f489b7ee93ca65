"""What peers without a key, and peers that never complete a message, can use of a site: little memory, few files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from flowrl.channels import ChannelLimits, SiteChannels, SiteConnections, UnsendableValue
from flowrl.channels.connection_guard import ENDLESS, HANDSHAKE, MAX_UNKNOWN, TCP_INFO, TOO_MANY
from flowrl.channels.keys import Keys, new_pair
from flowrl.channels.messages import PIECE_BYTES
from tests.channels.hostile_peers import (
    announce_frame,
    announce_ready,
    connect,
    greet,
    idle_connections,
    is_closed,
    send_endless_message,
)
from tests.channels.site_pairs import RUN, SitePair, open_pair, poll_until

needs_tcp_info = pytest.mark.skipif(TCP_INFO is None, reason="the system does not count bytes")


def refused(site: SiteChannels, reason: str) -> int:
    return site.connections.traffic().refused.get((reason, "?"), 0)


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[SitePair]:
    """Two sites that know each other's key; b is the one that is attacked."""
    with open_pair("curve", tmp_path) as sites:
        yield sites


# memory


@pytest.mark.parametrize("nbytes", [PIECE_BYTES * 2, 1 << 30, 1 << 62])
def test_a_frame_larger_than_a_piece_ends_the_connection_before_it_is_received(
    keyed: SitePair, nbytes: int
) -> None:
    with connect(keyed.addresses["b"]) as stranger:
        greet(stranger, b"CURVE")
        announce_frame(stranger, nbytes)
        assert is_closed(stranger)
    keyed.poll_until(lambda: refused(keyed.b, HANDSHAKE))
    sender, receiver = keyed.open_channel()
    assert keyed.transfer(sender, receiver, ["fine"]) == ["fine"]


@pytest.mark.parametrize("kind", ["ipc", "curve"])
@pytest.mark.parametrize("nbytes", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 << 20])
def test_large_tokens_are_sent_in_pieces(kind: str, nbytes: int, tmp_path: Path) -> None:
    array = np.arange(nbytes, dtype=np.uint8)
    value = {"a": array, "b": array[:PIECE_BYTES][::-1], "c": "text"}
    with open_pair(kind, tmp_path) as sites:
        sender, receiver = sites.open_channel()
        [taken] = sites.transfer(sender, receiver, [value])
    assert taken["c"] == "text"
    for name in "ab":
        np.testing.assert_array_equal(taken[name], value[name])
        assert taken[name].__array_interface__["data"][0] % 16 == 0


def test_a_large_header_is_sent_in_pieces(keyed: SitePair) -> None:
    sender, receiver = keyed.open_channel()
    values = ["x" * (3 * PIECE_BYTES), b"y" * PIECE_BYTES, "short"]
    assert keyed.transfer(sender, receiver, values) == values


def test_what_a_receiver_would_refuse_is_an_error_of_its_sender(
    keyed: SitePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.channels.zmq_connection.MAX_TREE_BYTES", 1000)
    monkeypatch.setattr("flowrl.channels.zmq_connection.MAX_TOKEN_PARTS", 2)
    sender, _ = keyed.open_channel()
    with pytest.raises(UnsendableValue, match=r"1\d\d\d bytes outside of arrays; at most 1000"):
        sender.send(bytes(1001))
    with pytest.raises(UnsendableValue, match="of 3 arrays; a token holds at most 2 arrays"):
        sender.send([np.zeros(1 << 14)] * 3)


@needs_tcp_info
def test_a_message_of_endless_parts_ends_the_connection() -> None:
    # Without keys everybody can send messages.
    b = SiteConnections("b", RUN, max_token_bytes=1 << 20)
    address = b.listen("tcp://127.0.0.1:*")
    with connect(address) as stranger:
        greet(stranger, b"NULL")
        announce_ready(stranger)
        # b reads nothing meanwhile
        send_endless_message(stranger, PIECE_BYTES // 2, lambda: b.traffic().lost_connections)
    assert b.traffic().refused == {(ENDLESS, "?"): 1}
    b.close(drop=True)


@needs_tcp_info
def test_many_large_tokens_are_no_endless_message(tmp_path: Path) -> None:
    with open_pair("curve", tmp_path, max_token_bytes=1 << 20) as sites:
        sender, receiver = sites.open_channel(ChannelLimits(2))
        for _ in range(20):
            [taken] = sites.transfer(sender, receiver, [np.zeros(1 << 20, np.uint8)])
            assert taken.nbytes == 1 << 20
        assert sites.b.connections.traffic().refused == {}


# connections


@needs_tcp_info
def test_idle_connections_are_closed_when_there_are_too_many(
    keyed: SitePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.channels.connection_guard.MIN_HANDSHAKE_S", 0.0)
    sender, receiver = keyed.open_channel()
    assert keyed.transfer(sender, receiver, ["before"]) == ["before"]
    with idle_connections(keyed.addresses["b"], MAX_UNKNOWN + 20) as strangers:
        assert all(map(is_closed, strangers[:20]))  # the oldest ones
        assert keyed.transfer(sender, receiver, ["meanwhile"]) == ["meanwhile"]
        assert keyed.b.connections.traffic().refused == {(TOO_MANY, "?"): 20}


@needs_tcp_info
def test_a_connection_is_not_closed_for_a_newer_one_while_it_has_time(
    keyed: SitePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowrl.channels.connection_guard.MIN_HANDSHAKE_S", 60.0)
    sender, receiver = keyed.open_channel()
    assert keyed.transfer(sender, receiver, ["before"]) == ["before"]
    with idle_connections(keyed.addresses["b"], MAX_UNKNOWN + 20) as strangers:
        assert all(map(is_closed, strangers[MAX_UNKNOWN:]))
        assert keyed.transfer(sender, receiver, ["meanwhile"]) == ["meanwhile"]
        assert keyed.b.connections.traffic().refused[TOO_MANY, "?"] == 20


@pytest.mark.slow
@needs_tcp_info
def test_a_peer_can_connect_while_strangers_take_all_the_room() -> None:
    one, two = new_pair(), new_pair()
    b = SiteChannels(SiteConnections("b", RUN, keys=Keys(*two, {"a": one[0]})))
    address = b.connections.listen("tcp://127.0.0.1:*")
    b.connections.connect("a", "tcp://127.0.0.1:1")
    with idle_connections(address, 2 * MAX_UNKNOWN):
        a = SiteChannels(SiteConnections("a", RUN, keys=Keys(*one, {"b": two[0]})))
        a.connections.connect("b", address)
        a.open_sender("x", "b").send("let me in")
        a.flush()
        receiver = b.open_receiver("x", "a")
        poll_until(receiver.is_ready, b)
        assert receiver.take()[0] == "let me in"
    for site in (a, b):
        site.close(drop=True)


ATTACKED = """
import resource, sys, time
from flowrl.channels import SiteConnections
from flowrl.channels.keys import Keys, new_pair
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])))
site = SiteConnections("b", b"run", keys=Keys(*new_pair(), {"a": new_pair()[0]}))
print(site.listen("tcp://127.0.0.1:*"), resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
sys.stdin.readline()  # the site does something else, and does not look at its connections
deadline = time.monotonic() + 60
files = []
while len(files) < 40 and time.monotonic() < deadline:
    try:
        files.append(open("/dev/null"))
    except OSError:  # ZeroMQ has not closed yet what the guard has shut down
        time.sleep(0.01)
print(len(files), site.traffic().refused["too many connections", "?"], flush=True)
"""


@contextmanager
def attacked(soft: int, hard: int) -> Iterator[subprocess.Popen[str]]:
    """A site in a process of its own with these limits of open files."""
    command = [sys.executable, "-c", ATTACKED, str(soft), str(hard)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as site:  # type: ignore[call-overload]
        yield site


@pytest.mark.slow
@needs_tcp_info
def test_idle_connections_leave_a_site_its_file_descriptors() -> None:
    with attacked(64, 256) as site:
        address, soft = site.stdout.readline().split()
        assert int(soft) == 256  # it was raised as far as allowed
        with idle_connections(address, 150) as strangers:
            assert all(map(is_closed, strangers[:-MAX_UNKNOWN]))
            output, errors = site.communicate("go\n", timeout=90)
    assert errors == ""
    assert output.split() == ["40", str(150 - MAX_UNKNOWN)]


def test_too_few_file_descriptors_are_an_error_that_names_the_address() -> None:
    with attacked(32, 32) as site:
        _, errors = site.communicate(timeout=90)
    assert "UsageError: tcp://127.0.0.1:*: to listen for connections" in errors
    assert "and 32 are allowed; raise that limit (ulimit -Hn)" in errors
