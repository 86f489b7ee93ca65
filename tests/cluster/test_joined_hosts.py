"""The hosts of a run: which ones may join, what is refused, and when waiting ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgpack
import pytest
import zmq

from flowrl.channels.connection_guard import ENDLESS, TCP_INFO
from flowrl.channels.keys import read_key, write_key
from flowrl.channels.refusals import MAX_LINES
from flowrl.checks.check import check
from flowrl.cluster.compatibility import host_warnings, incompatibilities, machine_facts
from flowrl.cluster.control_socket import MAX_RECEIVED_BYTES
from flowrl.cluster.join_file import RunIdentity
from flowrl.cluster.joined_hosts import HostError, JoinedHosts
from flowrl.cluster.launched_hosts import LaunchedHosts
from flowrl.cluster.messages import (
    PROTOCOL,
    EndSites,
    Heartbeat,
    HostDropped,
    HostLeft,
    HostMessage,
    Join,
    JoinRefused,
    RunMessage,
    SiteOutput,
    Welcome,
    host_session,
)
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError
from flowrl.graph.host_offers import HostOffer
from flowrl.graph.loading import load_data
from flowrl.machine.resources import NO_RESOURCES, MachineResources
from flowrl.runtime.sites.graph_transfer import graph_to_send
from tests.channels.hostile_peers import announce_ready, connect, greet, send_endless_message
from tests.toys.toy_runs import toy_graph

SENT = graph_to_send(check(load_data(toy_graph({"c": "Source", "l": "Learner"}, ["c -> l"]))))
SOON_S = 60.0


class Guest:
    """A host whose messages the test sends one by one."""

    def __init__(self, hosts: JoinedHosts, key: Path | None = None) -> None:
        self.hosts = hosts
        self.session = host_session(b"0123456789abcdef")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        if key is not None:
            keys = read_key(key)
            self.socket.curve_serverkey = self.socket.curve_publickey = keys.public
            self.socket.curve_secretkey = keys.secret
        self.socket.connect(hosts.address)

    def send(self, message: HostMessage) -> None:
        self.socket.send(self.session.pack(message), zmq.NOBLOCK)

    def join(self, name: str, **fields: Any) -> None:
        """Offer the host to the run; `fields` replace those of a sound message."""
        sound = {"protocol": PROTOCOL, "name": name, "labels": (), "address": "127.0.0.1", "resources": NO_RESOURCES,
                 "joined": self.hosts.address, "machine_id": "m", "machine": machine_facts(),
                 "run": "", "epoch": -1}  # fmt: skip
        self.send(Join(**{**sound, **fields}))

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
    return "; ".join(hosts.warnings())


@pytest.fixture
def shown() -> list[str]:
    """The lines that the user of the run sees."""
    return []


@pytest.fixture
def hosts(shown: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[JoinedHosts]:
    """A run that listens on the loopback."""
    monkeypatch.setattr("flowrl.cluster.joined_hosts.LEAVE_TIMEOUT_S", 0.1)  # guests never leave
    made = JoinedHosts(Rendezvous("tcp://127.0.0.1:*", within_s=0.5), SENT, shown.append)
    yield made
    made.close("the test is over")


@pytest.fixture
def guest(hosts: JoinedHosts) -> Iterator[Guest]:
    """A host that has sent nothing yet."""
    made = Guest(hosts)
    yield made
    made.close()


def test_a_host_that_joins_is_welcome(hosts: JoinedHosts, guest: Guest, shown: list[str]) -> None:
    guest.join("a", labels=("gpu",))
    assert guest.receive() == Welcome("graph", "a")
    [offer] = hosts.wait(["gpu"])
    assert (offer.name, offer.labels, offer.machine_id) == ("a", ("gpu",), "m")
    assert shown[0].startswith("host 'a' has joined (")


@pytest.mark.slow
def test_hosts_that_are_missing_are_counted(hosts: JoinedHosts, guest: Guest) -> None:
    hosts._needed = 2
    guest.join("a")
    guest.receive()
    with pytest.raises(
        HostError, match=r"^1 of 2 hosts have joined within 0\.5 s \(joined: a\); on "
    ):
        hosts.wait(["a"])


@pytest.mark.slow
def test_waiting_ends_and_names_the_missing_hosts(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.receive()
    with pytest.raises(HostError) as error:
        hosts.wait(["a", "b", "c-*"])
    assert str(error.value) == (
        "a host for 'b', 'c-*' has not joined within 0.5 s (joined: a); on the host: flowrl host "
        f"--join {hosts.address} --name NAME, with the same --key"
    )


@pytest.mark.slow
def test_waiting_ends_and_says_what_the_hosts_lack(
    hosts: JoinedHosts, guest: Guest, shown: list[str]
) -> None:
    guest.join("a", resources=MachineResources(8, 32 * 10**9))
    guest.receive()
    assert shown[0].startswith("host 'a' has joined (8 cores, 32.0 GB, no GPU, ")
    with pytest.raises(HostError) as error:
        hosts.wait(["any"], lambda offers: f"learner needs 1 GPU; hosts: {offers[0]}")
    assert str(error.value) == (
        "no hosts have joined within 0.5 s that have what the nodes need: learner needs 1 GPU; hosts: a (8 cores, "
        f"32.0 GB, no GPU); on the host: flowrl host --join {hosts.address} --name NAME, with the same --key"
    )


def test_waiting_goes_on_until_all_needs_are_met(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.receive()
    other = Guest(hosts)
    other.join("b", resources=MachineResources(gpus=("0",)))

    def lacking(offers: Sequence[HostOffer]) -> str:
        return "" if any(offer.resources.gpus for offer in offers) else "a GPU"

    assert {offer.name for offer in hosts.wait(["any"], lacking)} == {"a", "b"}
    other.close()


@pytest.mark.slow
def test_what_the_run_waits_for_names_the_missing_hosts(
    hosts: JoinedHosts, guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, pump = list[str](), hosts.pump

    def watched_pump(timeout_s: float = 0.0) -> None:
        pump(timeout_s)
        texts.append(hosts.waiting_text)

    guest.join("a")
    guest.receive()
    monkeypatch.setattr(hosts, "pump", watched_pump)
    command = f"flowrl host --join {hosts.address}"
    for places, needed, missing in (
        (["a", "b", "c-*"], 1, "none has joined for 'b', 'c-*'"),
        (["a"], 2, "1 of 2 have joined"),
    ):
        hosts._needed = needed
        with pytest.raises(HostError):
            hosts.wait(places)
        assert texts[-1] == f"waiting for hosts ({missing}): {command}"
    assert not hosts.is_waiting
    assert hosts.waiting_text == f"waiting for hosts: {command}"


class Launched:
    """What launchers say, as the test sets it."""

    is_waiting, failure, missing = False, "", ""

    def take_news(self) -> list[str]:
        return []

    def end(self) -> None:
        pass


@pytest.mark.slow
def test_a_host_that_will_not_come_ends_the_first_wait_but_not_a_recovery(
    hosts: JoinedHosts, guest: Guest
) -> None:
    launched, hosts._needed = Launched(), 2
    hosts.launched = cast(LaunchedHosts, launched)
    guest.join("a")
    guest.receive()
    launched.missing = "b has no Python"
    with pytest.raises(HostError, match=r"^b has no Python$"):
        hosts.wait(["a"])
    hosts._needed = 1
    assert [offer.name for offer in hosts.wait(["a"])] == ["a"]
    hosts._needed = 2
    assert [offer.name for offer in hosts.wait(["a"])] == ["a"]


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


def test_sites_are_ended_for_others_and_a_host_that_does_not_is_left_out(
    hosts: JoinedHosts, guest: Guest
) -> None:
    guest.join("a")
    assert guest.receive() == Welcome("graph", "a")
    hosts.offers()
    for host in hosts._joined.values():
        host.has_sites = True
    hosts.end_sites()  # waits for 0.1 s
    assert guest.receive() == EndSites()
    assert hosts.offers() == []


def test_another_protocol_is_refused_with_the_reason(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a", protocol=99)
    assert guest.receive() == JoinRefused(
        f"it speaks version 99 of the protocol, and the run {PROTOCOL}"
    )
    with pytest.raises(HostError, match=r"host 'a' cannot take part: it speaks version 99"):
        hosts.wait(["a"])


def test_an_unfit_host_that_no_place_needs_stops_nothing(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("b", machine={**machine_facts(), "numpy": "0.1"})
    assert isinstance(guest.receive(), JoinRefused)
    other = Guest(hosts)
    other.join("a")
    assert [offer.name for offer in hosts.wait(["a"])] == ["a"]
    other.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "epoch", "why"),
    [
        ("cartpole-2", 3, "it was started for another run (cartpole-2; this is cartpole-1)"),
        ("cartpole-1", 2, "it was started for epoch 2 of this run, which is in epoch 3 since"),
        ("cartpole-1", 3, ""),
        ("", -1, ""),  # by an address that a person has typed
    ],
)
def test_hosts_of_other_runs_and_epochs_are_refused(
    run: str, epoch: int, why: str, shown: list[str]
) -> None:
    identity = RunIdentity("cartpole-1", 3)
    hosts = JoinedHosts(Rendezvous("tcp://127.0.0.1:*", within_s=0.1), SENT, shown.append, identity)
    guest = Guest(hosts)
    guest.join("late", run=run, epoch=epoch)
    answer = guest.receive()
    if why:
        assert isinstance(answer, JoinRefused)
        assert answer.why.startswith(why)
        assert f"host 'late' is refused: {why}" in shown[0]
    else:
        assert answer == Welcome("graph", "late")
    guest.close()
    hosts.close("the test is over")


def test_the_run_puts_the_smallest_free_number_for_a_star(hosts: JoinedHosts) -> None:
    guests = [Guest(hosts) for _ in range(4)]
    for guest, name in zip(guests[:3], ("cpu-0", "cpu-1", "cpu-2"), strict=True):
        guest.join("cpu-*")
        assert guest.receive() == Welcome("graph", name)
    guests[1].send(HostLeft("it has left"))
    until(hosts, lambda: len(hosts.offers()) == 2)
    guests[3].join("cpu-*")
    assert guests[3].receive() == Welcome("graph", "cpu-1")
    for guest in guests:
        guest.close()


@pytest.mark.slow
def test_what_sites_print_is_in_the_log_of_their_host(tmp_path: Path) -> None:
    rendezvous = Rendezvous("tcp://127.0.0.1:*", within_s=0.1)
    hosts = JoinedHosts(rendezvous, SENT, log_folder=tmp_path / "hosts")
    guest = Guest(hosts)
    guest.join("a")
    guest.send(SiteOutput("one\n"))
    guest.send(SiteOutput("two\n"))
    log = tmp_path / "hosts" / "a.log"
    until(hosts, lambda: log.exists() and log.read_text() == "one\ntwo\n")
    guest.close()
    hosts.close("the test is over")


@pytest.mark.slow
def test_a_name_is_free_again_when_its_host_has_left(hosts: JoinedHosts, guest: Guest) -> None:
    guest.join("a")
    guest.receive()
    other = Guest(hosts)
    other.join("a")
    assert other.receive() == JoinRefused(
        "another host has this name already; give it another with --name"
    )
    other.close()
    with pytest.raises(
        HostError,
        match=r"a host for 'b' has not joined .*joined: a.*another host has this name .*from host 'a'",
    ):
        hosts.wait(["b"])
    guest.send(HostLeft("it was stopped"))
    until(hosts, lambda: not hosts.offers())
    third = Guest(hosts)
    third.join("a")
    assert third.receive() == Welcome("graph", "a")
    third.close()


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
def test_a_message_of_endless_parts_ends_its_connection(hosts: JoinedHosts) -> None:
    with connect(hosts.address) as stranger:
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
    hosts: JoinedHosts, guest: Guest
) -> None:
    guest.join("a")
    guest.receive()
    for number in range(100):
        hosts._refused.add(f"a name like number {number}")
    assert len(hosts.warnings()) == MAX_LINES + 1
    assert hosts.warnings()[-1] == f"refused at {hosts.address}: 31 more reasons"
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
    hosts = JoinedHosts(Rendezvous("tcp://127.0.0.1:*", tmp_path / "key", within_s=0.1), SENT)
    guests = [Guest(hosts, tmp_path / "other"), Guest(hosts)]
    for guest in guests:
        with suppress(zmq.Again):  # the connection may have been refused already
            guest.join("a")
    until(hosts, lambda: "a connection without the run's key" in refusals(hosts))
    assert not hosts.offers()
    friend = Guest(hosts, tmp_path / "key")
    friend.join("b")
    assert friend.receive() == Welcome("graph", "b")
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


def test_an_address_that_is_in_use_is_refused(hosts: JoinedHosts) -> None:
    with pytest.raises(UsageError, match="cannot listen: Address already in use"):
        JoinedHosts(Rendezvous(hosts.address), SENT)


# facts of machines


def test_versions_must_be_the_same() -> None:
    run = machine_facts()
    assert list(incompatibilities(run, run)) == []
    assert list(incompatibilities(run, {**run, "torch": "", "python": "2.7"})) == [
        f"it has python 2.7, and the run has {run['python']}",
        f"it has no torch, and the run has {run['torch']}",
    ]


def test_machines_that_differ_cause_a_warning_and_equal_ones_do_not() -> None:
    run = machine_facts()
    assert list(host_warnings("a", run, run)) == []
    [line] = host_warnings("a", run, {**run, "torch_build": "2.13.0+cu131"})
    assert line.startswith("host 'a' has another build of torch (2.13.0+cu131; the run has ")
    host = {**run, "choices": "MKL_CBWR=AVX2"}
    [line] = host_warnings("a", {**run, "choices": ""}, host)
    assert "choice of instructions in its environment (MKL_CBWR=AVX2; the run has none)" in line


def test_facts_do_not_load_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from flowrl.cluster.compatibility import machine_facts; f = machine_facts(); "
        "assert f['torch_build'].startswith(f['torch']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
