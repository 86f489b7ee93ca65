"""The run's end of the control connections: who is let in, what is refused, and when waiting ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from flowrl.channels.keys import read_key, write_key
from flowrl.checks.check import check
from flowrl.cluster.compatibility import differences, machine_facts, unlike
from flowrl.cluster.control import PROTOCOL, ControlConnection
from flowrl.cluster.control_socket import HEARD_BYTES
from flowrl.cluster.joined_hosts import HostError, JoinedHosts
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError
from flowrl.graph.loading import load_data
from flowrl.runtime.sites.graph_transfer import graph_to_send
from tests.toys.running import tree

SENT = graph_to_send(check(load_data(tree({"c": "Source", "l": "Learner"}, ["c -> l"]))))
SOON_S = 10.0


class Guest:
    """A host's end, word by word."""

    def __init__(self, hosts: JoinedHosts, key: Path | None = None) -> None:
        self.hosts = hosts
        self.line = ControlConnection(b"0123456789abcdef")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        if key is not None:
            keys = read_key(key)
            self.socket.curve_serverkey = self.socket.curve_publickey = keys.public
            self.socket.curve_secretkey = keys.secret
        self.socket.connect(hosts.address)

    def say(self, word: str, *values: Any) -> None:
        self.socket.send(self.line.pack(word, *values))

    def join(self, name: str, protocol: int = PROTOCOL, **about: Any) -> None:
        where = {"address": "127.0.0.1", "joined": self.hosts.address}
        facts = {"name": name, "labels": [], **where, **machine_facts(), **about}
        self.say("join", protocol, facts)

    def hears(self) -> tuple[str, list[Any]]:
        """The next word, but for heartbeats."""
        word, values = "beat", []
        while word == "beat":
            until(self.hosts, lambda: self.socket.poll(0))
            word, values = self.line.read(self.socket.recv())
        return word, values

    def close(self) -> None:
        self.socket.close()
        self._context.term()


def until(hosts: JoinedHosts, condition: Callable[[], Any]) -> None:
    """Let the run hear until the condition holds."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        hosts.pump(0.01)


def refusals(hosts: JoinedHosts) -> str:
    return "; ".join(hosts.warnings())


@pytest.fixture
def told() -> list[str]:
    """What whoever started the run is told."""
    return []


@pytest.fixture
def hosts(told: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[JoinedHosts]:
    """A run that listens on the loopback."""
    monkeypatch.setattr("flowrl.cluster.joined_hosts.GOODBYE_S", 0.1)  # guests have nothing to end
    made = JoinedHosts(Rendezvous("tcp://127.0.0.1:*", within_s=0.5), SENT, told.append)
    yield made
    made.close("the test is over")


@pytest.fixture
def guest(hosts: JoinedHosts) -> Iterator[Guest]:
    """A host that has not said anything."""
    made = Guest(hosts)
    yield made
    made.close()


def test_who_joins_is_welcome(hosts: JoinedHosts, guest: Guest, told: list[str]) -> None:
    guest.join("a", labels=["gpu"])
    assert guest.hears() == ("welcome", ["graph"])
    [offer] = hosts.wait(["gpu"])
    assert (offer.name, offer.labels) == ("a", ("gpu",))
    assert told[0].startswith("host 'a' has joined (")


def test_waiting_ends_and_says_who_is_missing(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.hears()
    with pytest.raises(HostError) as error:
        hosts.wait(["a", "b", "c-*"])
    assert str(error.value) == (
        "a host for 'b', 'c-*' has not joined within 0.5 s (joined: a); on the host: flowrl host "
        f"--join {hosts.address} --name NAME, with the same --key"
    )


def test_another_protocol_is_refused_with_the_reason(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a", protocol=99)
    word, [why] = guest.hears()
    assert (word, why) == ("refused", "it speaks version 99 of the protocol, and the run 1")
    with pytest.raises(HostError, match=r"host 'a' cannot take part: it speaks version 99"):
        hosts.wait(["a"])


def test_an_unfit_host_that_nobody_needs_stops_nothing(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("b", numpy="0.1")
    assert guest.hears()[0] == "refused"
    other = Guest(hosts)
    other.join("a")
    assert [offer.name for offer in hosts.wait(["a"])] == ["a"]
    other.close()


def test_a_name_is_free_again_when_its_host_has_left(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.hears()
    other = Guest(hosts)
    other.join("a")
    assert other.hears() == (
        "refused",
        ["another host has this name already; give it another with --name"],
    )
    other.close()
    with pytest.raises(
        HostError,
        match=r"a host for 'b' has not joined .*joined: a.*another host has this name .*from host 'a'",
    ):
        hosts.wait(["b"])
    guest.say("left", "it was stopped")
    until(hosts, lambda: not hosts.offers())
    third = Guest(hosts)
    third.join("a")
    assert third.hears()[0] == "welcome"
    third.close()


def test_a_host_that_hangs_up_is_gone(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.hears()
    guest.close()
    until(hosts, lambda: not hosts.offers())


def test_a_silent_host_is_gone(
    hosts: JoinedHosts, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest.join("a")
    guest.hears()
    monkeypatch.setattr("flowrl.cluster.joined_hosts.SILENCE_S", 0.05)
    until(hosts, lambda: not hosts.offers())


# what is refused: counted, named, and without any effect


def test_a_word_that_is_sent_again_is_refused(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.hears()
    beat = guest.line.pack("beat")
    for _ in range(3):
        guest.socket.send(beat)
    until(hosts, lambda: "replayed, from host 'a' (2 times)" in refusals(hosts))
    assert [offer.name for offer in hosts.offers()] == ["a"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed"),
        (b"\xc1 nonsense", "malformed"),
        (msgpack.packb([b"0123456789abcdef", 1, "welcome", "me"]), "unknown word"),
        (msgpack.packb([b"0123456789abcdef", 1, "ended", 3, 4]), "malformed"),
        (msgpack.packb([b"fedcba9876543210", 1, "beat"]), "another session"),
    ],
)
def test_what_is_no_word_of_a_host_is_refused(
    hosts: JoinedHosts, guest: Guest, data: bytes, reason: str
) -> None:
    guest.join("a")
    guest.hears()
    guest.socket.send(data)
    until(hosts, lambda: f"{reason}, from host 'a' (1 times)" in refusals(hosts))


def test_who_has_not_joined_is_not_heard(hosts: JoinedHosts, guest: Guest) -> None:
    guest.say("beat")
    until(hosts, lambda: "not joined, from somebody who has not joined" in refusals(hosts))


def test_what_is_too_large_ends_the_connection(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.hears()
    guest.say("said", "x" * (HEARD_BYTES + 1))
    until(hosts, lambda: not hosts.offers())


@pytest.mark.parametrize(
    "about",
    [
        {"name": 7},
        {"name": "process"},
        {"labels": "gpu"},
        {"labels": [7]},
        {"cores": "many"},
        {"address": "tcp://x; rm"},
        {"address": "0.0.0.0"},
        {"joined": "here"},
    ],
)
def test_a_host_that_says_nonsense_of_itself_is_refused(
    hosts: JoinedHosts, guest: Guest, about: dict[str, Any]
) -> None:
    guest.join(**{"name": "a", **about})
    until(hosts, lambda: "malformed, from somebody who has not joined" in refusals(hosts))
    assert not hosts.offers()


def test_without_the_key_nobody_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrl.cluster.joined_hosts.GOODBYE_S", 0.1)
    for name in ("key", "other"):
        write_key(tmp_path / name)
    hosts = JoinedHosts(Rendezvous("tcp://127.0.0.1:*", tmp_path / "key", within_s=0.1), SENT)
    guests = [Guest(hosts, tmp_path / "other"), Guest(hosts)]
    for guest in guests:
        guest.join("a")
    until(hosts, lambda: "a connection without the run's key" in refusals(hosts))
    assert not hosts.offers()
    friend = Guest(hosts, tmp_path / "key")
    friend.join("b")
    assert friend.hears()[0] == "welcome"
    for guest in (*guests, friend):
        guest.close()
    hosts.close("the test is over")


@pytest.mark.parametrize("listen", ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://192.0.2.1:5555"])
def test_an_address_that_others_can_reach_needs_a_key(listen: str) -> None:
    with pytest.raises(UsageError) as error:
        JoinedHosts(Rendezvous(listen), SENT)
    assert "others can reach this address, so it needs --key FILE; make one with" in str(
        error.value
    )


def test_an_address_that_is_taken_is_told(hosts: JoinedHosts) -> None:
    with pytest.raises(UsageError, match="cannot listen: Address already in use"):
        JoinedHosts(Rendezvous(hosts.address), SENT)


# likeness


def test_versions_must_be_the_same() -> None:
    here = machine_facts()
    assert list(differences(here, here)) == []
    there = {**here, "torch": "", "python": "2.7"}
    assert list(differences(here, there)) == [
        f"it has python 2.7, and the run has {here['python']}",
        f"it has no torch, and the run has {here['torch']}",
    ]


def test_unlike_machines_are_told_and_like_ones_are_not() -> None:
    here = machine_facts()
    assert list(unlike("a", here, here)) == []
    [line] = unlike("a", here, {**here, "torch_build": "2.13.0+cu131"})
    assert line.startswith("host 'a' has another build of torch (2.13.0+cu131; here ")
    [line] = unlike("a", {**here, "choices": ""}, {**here, "choices": "MKL_CBWR=AVX2"})
    assert "another choice of instructions in its environment (MKL_CBWR=AVX2; here none)" in line


def test_facts_do_not_load_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from flowrl.cluster.compatibility import machine_facts; f = machine_facts(); "
        "assert f['torch_build'].startswith(f['torch']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
