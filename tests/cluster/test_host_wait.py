"""How a run waits for its hosts: when waiting ends, and what is said to be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from flowrl.cluster.host_admission import HostAdmission
from flowrl.cluster.host_wait import HostWait
from flowrl.cluster.joined_host import HostError, JoinedHost
from flowrl.cluster.joined_hosts import JoinedHosts
from flowrl.cluster.launched_hosts import LaunchedHosts
from flowrl.graph.host_offers import HostOffer
from flowrl.machine.resources import MachineResources
from tests.cluster.stub_hosts import ADDRESS, FACTS, StubJoinedHosts, stub_host

ON_THE_HOST = f"on the host: flowrl host --join {ADDRESS} --name NAME, with the same --key"
REFUSED = "refused at the port: malformed (1 times)"


class Launched:
    """What launchers say, as the test sets it."""

    are_any, is_waiting, failure, missing = False, False, "", ""


class Waiting:
    """A run that waits for hosts which are stubs. It has no patience."""

    def __init__(self, *hosts: JoinedHost, needed: int = 1, within_s: float = 0.0) -> None:
        self.joined, self.launched = StubJoinedHosts(*hosts), Launched()
        self.admission = HostAdmission(FACTS)
        self.wait = HostWait(
            cast(JoinedHosts, self.joined),
            self.admission,
            cast(LaunchedHosts, self.launched),
            needed,
            within_s,
            ADDRESS,
        )

    def names(self, *places: str) -> list[str]:
        """The hosts for which it waits; the error if they do not join."""
        try:
            return [offer.name for offer in self.wait.wait(places)]
        except HostError as error:
            return [str(error)]


def test_waiting_ends_when_enough_hosts_have_joined() -> None:
    waiting = Waiting(stub_host("a"), needed=2, within_s=60.0)
    waiting.joined.on_pump = lambda: waiting.joined.hosts.append(stub_host("b"))
    assert waiting.names("a") == ["a", "b"]


def test_hosts_that_are_missing_are_counted() -> None:
    waiting = Waiting(stub_host("a"), needed=2)
    assert waiting.names("a") == [
        f"1 of 2 hosts have joined within 0 s (joined: a); {REFUSED}; {ON_THE_HOST}"
    ]


def test_waiting_ends_if_the_run_does_not_need_hosts_any_more() -> None:
    waiting = Waiting(needed=1, within_s=60.0)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        waiting.wait.wait(["any"], before_poll=stop)
    assert not waiting.wait.is_going_on


def test_waiting_ends_and_names_the_missing_hosts() -> None:
    waiting = Waiting(stub_host("a"))
    why = f"a host for 'b', 'c-*' has not joined within 0 s (joined: a); {REFUSED}; {ON_THE_HOST}"
    assert waiting.names("a", "b", "c-*") == [why]


def test_waiting_ends_and_says_what_the_hosts_lack() -> None:
    wait = Waiting(stub_host("a", resources=MachineResources(8, 32 * 10**9))).wait
    with pytest.raises(HostError) as error:
        wait.wait(["any"], lambda offers: f"learner needs 1 GPU; hosts: {offers[0]}")
    assert str(error.value) == (
        "no hosts have joined within 0 s that have what the nodes need: learner needs 1 GPU; hosts: a (8 cores, "
        f"32.0 GB, no GPU); {REFUSED}; {ON_THE_HOST}"
    )


def test_waiting_goes_on_until_all_needs_are_met() -> None:
    waiting = Waiting(stub_host("a"), within_s=60.0)
    other = stub_host("b", resources=MachineResources(gpus=("0",)))
    waiting.joined.on_pump = lambda: waiting.joined.hosts.append(other)

    def lacking(offers: Sequence[HostOffer]) -> str:
        return "" if any(offer.resources.gpus for offer in offers) else "a GPU"

    assert [offer.name for offer in waiting.wait.wait(["any"], lacking)] == ["a", "b"]


@pytest.mark.parametrize(
    ("places", "needed", "missing"),
    [(["a", "b", "c-*"], 1, "none has joined for 'b', 'c-*'"), (["a"], 2, "1 of 2 have joined")],
)
def test_what_the_run_waits_for_names_the_missing_hosts(
    places: list[str], needed: int, missing: str
) -> None:
    waiting, texts = Waiting(stub_host("a"), needed=needed, within_s=60.0), list[str]()

    def note_the_text() -> None:
        texts.append(waiting.wait.text)
        if len(texts) == 2:
            waiting.launched.failure = "enough"

    waiting.joined.on_pump = note_the_text
    assert waiting.names(*places) == ["enough"]
    command = f"flowrl host --join {ADDRESS}"
    assert texts == [
        f"waiting for hosts ({why}): {command}" for why in ("none has joined", missing)
    ]
    assert not waiting.wait.is_going_on
    assert waiting.wait.text == f"waiting for hosts: {command}"


def test_a_run_with_launchers_waits_for_what_they_launch() -> None:
    waiting = Waiting(needed=3)
    waiting.launched.are_any = True
    assert waiting.wait.text == "waiting for 3 hosts to be launched"


def test_the_time_of_a_queue_does_not_count() -> None:
    waiting, pumped = Waiting(), list[int]()
    waiting.launched.is_waiting = True

    def leave_the_queue_at_last() -> None:
        pumped.append(0)
        if len(pumped) == 5:
            waiting.joined.hosts.append(stub_host("a"))

    waiting.wait.within_s = 0.05
    waiting.joined.on_pump = leave_the_queue_at_last
    assert waiting.names("a") == ["a"]


def test_a_host_that_will_not_come_ends_the_first_wait_but_not_a_recovery() -> None:
    waiting = Waiting(stub_host("a"), needed=2, within_s=60.0)
    waiting.launched.missing = "b has no Python"
    assert waiting.names("a") == ["b has no Python"]
    waiting.wait.needed = 1
    assert waiting.names("a") == ["a"]
    waiting.wait.needed = 2
    assert waiting.names("a") == ["a"]


def test_a_recovery_waits_for_as_many_hosts_as_before_and_then_does_with_fewer() -> None:
    waiting = Waiting(stub_host("a"), stub_host("b"), needed=2)
    assert waiting.names("a") == ["a", "b"]
    waiting.joined.hosts.pop()
    assert waiting.names("a") == ["a"]


def test_a_failed_launcher_ends_a_recovery_that_has_no_host_for_a_place() -> None:
    waiting = Waiting(stub_host("a"), within_s=60.0)
    assert waiting.names("a") == ["a"]
    waiting.joined.hosts.clear()
    waiting.launched.failure = waiting.launched.missing = "launch ssh: no route"
    assert waiting.names("a") == ["launch ssh: no route"]


def test_an_unfit_host_stops_a_run_that_has_no_other_for_its_place() -> None:
    waiting = Waiting(stub_host("a"), within_s=60.0)
    waiting.admission.admit(stub_host("b", protocol=99), [])
    assert waiting.names("a") == ["a"]
    assert waiting.names("b")[0].startswith("host 'b' cannot take part: it speaks version 99 of")
