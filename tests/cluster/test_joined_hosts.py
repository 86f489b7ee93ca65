"""The hosts that have joined a run: which messages are refused, and when a host is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from flowrl.channels.connection_guard import ENDLESS, TCP_INFO
from flowrl.channels.keys import read_key, write_key
from flowrl.channels.refusals import MAX_LINES
from flowrl.cluster.compatibility import machine_facts
from flowrl.cluster.control_socket import MAX_RECEIVED_BYTES, ControlSocket
from flowrl.cluster.host_admission import NAME_TAKEN, HostAdmission
from flowrl.cluster.joined_hosts import JoinedHosts
from flowrl.cluster.messages import (
    Heartbeat,
    HostDropped,
    HostLeft,
    HostMessage,
    JoinRefused,
    RunMessage,
    SiteOutput,
    Welcome,
    host_session,
)
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError
from flowrl.machine.resources import MachineResources
from tests.channels.hostile_peers import announce_ready, connect, greet, send_endless_message
from tests.cluster.stub_hosts import SESSION, join_message

SOON_S = 60.0


class Guest:
    """A host whose messages the test sends one by one."""

    def __init__(self, hosts: JoinedHosts, control: ControlSocket, key: Path | None = None) -> None:
        self.hosts, self.control = hosts, control
        self.session = host_session(SESSION)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        if key is not None:
            keys = read_key(key)
            self.socket.curve_serverkey = self.socket.curve_publickey = keys.public
            self.socket.curve_secretkey = keys.secret
        self.socket.connect(control.address)

    def send(self, message: HostMessage) -> None:
        self.socket.send(self.session.pack(message), zmq.NOBLOCK)

    def join(self, name: str, **fields: Any) -> None:
        """Offer the host to the run; `fields` replace those of a sound message."""
        self.send(join_message(name, **fields))

    def receive(self) -> RunMessage:
        """The next message that is not a heartbeat."""
        message: RunMessage = Heartbeat()
        while message == Heartbeat():
            until(self.hosts, lambda: self.socket.poll(0))
            message = self.session.read(self.socket.recv())
        return message

    def close(self) -> None:
        self.socket.close()
        self._context.term()


def until(hosts: JoinedHosts, condition: Callable[[], Any]) -> None:
    """Let the run receive messages until the condition holds."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        hosts.pump(0.01)


def refusals(hosts: JoinedHosts) -> str:
    return "; ".join(hosts.refusals())


@pytest.fixture
def shown() -> list[str]:
    """The lines that the user of the run sees."""
    return []


@pytest.fixture
def control() -> ControlSocket:
    """A port on the loopback, which `hosts` closes."""
    return ControlSocket(Rendezvous("tcp://127.0.0.1:*"))


@pytest.fixture
def hosts(
    control: ControlSocket, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[JoinedHosts]:
    """The hosts of a run that listens at the port."""
    monkeypatch.setattr("flowrl.cluster.joined_hosts.LEAVE_TIMEOUT_S", 0.1)  # guests never leave
    admission = HostAdmission(machine_facts())
    made = JoinedHosts(control, admission, "graph", shown.append, tmp_path / "hosts")
    yield made
    made.close("the test is over")


@pytest.fixture
def guest(hosts: JoinedHosts, control: ControlSocket) -> Iterator[Guest]:
    """A host that has sent nothing yet."""
    made = Guest(hosts, control)
    yield made
    made.close()


def test_a_host_that_joins_is_welcome(hosts: JoinedHosts, guest: Guest, shown: list[str]) -> None:
    guest.join("a", labels=("gpu",), resources=MachineResources(8, 32 * 10**9))
    assert guest.receive() == Welcome("graph", "a")
    [offer] = hosts.offers()
    assert (offer.name, offer.labels, offer.machine_id) == ("a", ("gpu",), "m")
    assert shown[0].startswith("host 'a' has joined (8 cores, 32.0 GB, no GPU, ")


def test_a_silent_host_that_comes_back_is_told_that_it_was_dropped(
    hosts: JoinedHosts, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest.join("a")
    assert guest.receive() == Welcome("graph", "a")
    monkeypatch.setattr("flowrl.cluster.joined_hosts.SILENCE_S", 0.0)
    until(hosts, lambda: not hosts.offers())
    for _ in range(2):
        guest.send(Heartbeat())
    why = "nothing was heard of it for 0 s"
    assert guest.receive() == HostDropped(why)
    assert refusals(hosts) == ""


def test_the_run_puts_the_smallest_free_number_for_a_star(
    hosts: JoinedHosts, control: ControlSocket
) -> None:
    guests = [Guest(hosts, control) for _ in range(4)]
    for guest, name in zip(guests[:3], ("cpu-0", "cpu-1", "cpu-2"), strict=True):
        guest.join("cpu-*")
        assert guest.receive() == Welcome("graph", name)
    guests[1].send(HostLeft("it has left"))
    until(hosts, lambda: len(hosts.offers()) == 2)
    guests[3].join("cpu-*")
    assert guests[3].receive() == Welcome("graph", "cpu-1")
    for guest in guests:
        guest.close()


def test_a_name_is_free_again_when_its_host_has_left(
    hosts: JoinedHosts, control: ControlSocket, guest: Guest, shown: list[str]
) -> None:
    guest.join("a")
    guest.receive()
    other = Guest(hosts, control)
    other.join("a")
    assert other.receive() == JoinRefused(NAME_TAKEN)
    other.close()
    assert shown[1] == f"host 'a' is refused: {NAME_TAKEN}"
    assert f"{NAME_TAKEN}, from host 'a' (1 times)" in refusals(hosts)
    guest.send(HostLeft("it was stopped"))
    until(hosts, lambda: not hosts.offers())
    third = Guest(hosts, control)
    third.join("a")
    assert third.receive() == Welcome("graph", "a")
    third.close()


def test_what_sites_print_is_in_the_log_of_their_host(
    hosts: JoinedHosts, guest: Guest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guest.join("a")
    guest.send(SiteOutput("one\n"))
    guest.send(SiteOutput("two\n"))
    log = tmp_path / "hosts" / "a.log"
    until(hosts, lambda: log.exists() and log.read_text() == "one\ntwo\n")
    assert "[a] one\n[a] two\n" in capsys.readouterr().err


@pytest.mark.slow
def test_a_host_that_hangs_up_is_gone(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.receive()
    guest.close()
    until(hosts, lambda: not hosts.offers())


def test_a_silent_host_is_gone(
    hosts: JoinedHosts, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest.join("a")
    guest.receive()
    monkeypatch.setattr("flowrl.cluster.joined_hosts.SILENCE_S", 0.05)
    until(hosts, lambda: not hosts.offers())


# what is refused: counted, named, and without any effect


def test_a_message_that_is_sent_again_is_refused(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.receive()
    beat = guest.session.pack(Heartbeat())
    for _ in range(3):
        guest.socket.send(beat)
    until(hosts, lambda: "replayed, from host 'a' (2 times)" in refusals(hosts))
    assert [offer.name for offer in hosts.offers()] == ["a"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (b"\xc1 nonsense", "malformed"),
        (msgpack.packb([b"0123456789abcdef", 1, {"type": "Welcome", "graph": "me"}]), "malformed"),
        (
            msgpack.packb([b"0123456789abcdef", 1, {"type": "SiteEnded", "site": 3, "why": 4}]),
            "malformed",
        ),
        (msgpack.packb([b"fedcba9876543210", 1, {"type": "Heartbeat"}]), "another session"),
    ],
)
def test_anything_but_a_message_of_a_host_is_refused(
    hosts: JoinedHosts, guest: Guest, data: bytes, reason: str
) -> None:
    guest.join("a")
    guest.receive()
    guest.socket.send(data)
    until(hosts, lambda: f"{reason}, from host 'a' (1 times)" in refusals(hosts))


def test_a_message_from_a_host_that_has_not_joined_is_refused(
    hosts: JoinedHosts, guest: Guest
) -> None:
    guest.send(Heartbeat())
    until(hosts, lambda: "not joined, from a connection that has not joined" in refusals(hosts))


@pytest.mark.slow
def test_what_is_too_large_ends_the_connection(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.receive()
    guest.send(SiteOutput("x" * (MAX_RECEIVED_BYTES + 1)))
    until(hosts, lambda: not hosts.offers())


@pytest.mark.skipif(TCP_INFO is None, reason="the system does not count bytes")
def test_a_message_of_endless_parts_ends_its_connection(
    hosts: JoinedHosts, control: ControlSocket
) -> None:
    with connect(control.address) as stranger:
        greet(stranger, b"NULL")
        announce_ready(stranger, b"DEALER")

        def is_refused() -> bool:
            hosts.pump()
            return f"{ENDLESS} (1 times)" in refusals(hosts)

        send_endless_message(stranger, MAX_RECEIVED_BYTES // 2, is_refused)


def test_a_message_of_two_parts_is_refused(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.receive()
    guest.socket.send_multipart([b"one", b"two", b"three"])
    until(hosts, lambda: "malformed: not one part (1 times)" in refusals(hosts))
    assert [offer.name for offer in hosts.offers()] == ["a"]


def test_names_that_strangers_choose_do_not_fill_the_summary(
    hosts: JoinedHosts, control: ControlSocket, guest: Guest
) -> None:
    guest.join("a")
    guest.receive()
    for number in range(100):
        control.refused.add(f"a name like number {number}")
    assert len(hosts.refusals()) == MAX_LINES + 1
    assert hosts.refusals()[-1] == f"refused at {control.address}: 31 more reasons"
    assert "other reasons (50 times)" in refusals(hosts)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": 7},
        {"name": "process"},
        {"labels": (7,)},
        {"machine": {"torch": 2}},
        {"resources": MachineResources(cores="many")},
        {"address": "tcp://x; rm"},
        {"address": "0.0.0.0"},
        {"joined": "here"},
    ],
)
def test_a_host_with_impossible_facts_is_refused(
    hosts: JoinedHosts, guest: Guest, fields: dict[str, Any]
) -> None:
    guest.join(**{"name": "a", **fields})
    until(hosts, lambda: "malformed, from a connection that has not joined" in refusals(hosts))
    assert not hosts.offers()


def test_without_the_key_no_host_can_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.cluster.joined_hosts.LEAVE_TIMEOUT_S", 0.1)
    for name in ("key", "other"):
        write_key(tmp_path / name)
    control = ControlSocket(Rendezvous("tcp://127.0.0.1:*", tmp_path / "key"))
    hosts = JoinedHosts(control, HostAdmission(machine_facts()), "graph")
    guests = [Guest(hosts, control, tmp_path / "other"), Guest(hosts, control)]
    for guest in guests:
        with suppress(zmq.Again):  # the connection may have been refused already
            guest.join("a")
    until(hosts, lambda: "a connection without the run's key" in refusals(hosts))
    assert not hosts.offers()
    friend = Guest(hosts, control, tmp_path / "key")
    friend.join("b")
    assert friend.receive() == Welcome("graph", "b")
    for guest in (*guests, friend):
        guest.close()
    hosts.close("the test is over")


@pytest.mark.parametrize("listen", ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://192.0.2.1:5555"])
def test_an_address_that_others_can_reach_needs_a_key(listen: str) -> None:
    with pytest.raises(UsageError) as error:
        ControlSocket(Rendezvous(listen))
    assert "others can reach this address, so it needs --key FILE; make one with" in str(
        error.value
    )


@pytest.mark.usefixtures("hosts")
def test_an_address_that_is_in_use_is_refused(control: ControlSocket) -> None:
    with pytest.raises(UsageError, match="cannot listen: Address already in use"):
        ControlSocket(Rendezvous(control.address))
