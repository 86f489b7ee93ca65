"""Which host has which site of a run, and what a run asks of them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import cast

import pytest

from flowrl.cluster.joined_hosts import JoinedHosts
from flowrl.cluster.messages import (
    Disturb,
    EndSites,
    FilePiece,
    ListenFor,
    SiteEnded,
    SitePorts,
    SitesEnded,
    StartSites,
)
from flowrl.cluster.site_hosts import SiteHosts
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.disturbances import HostSilence, SiteSignal
from flowrl.runtime.sites.addresses import Addresses
from flowrl.runtime.sites.graph_transfer import SentGraph
from flowrl.runtime.sites.site_failures import SiteLost
from tests.cluster.stub_hosts import StubJoinedHosts, stub_host


@pytest.fixture
def sent(tmp_path: Path) -> SentGraph:
    (tmp_path / "rows").write_bytes(b"12")
    return SentGraph({"title": "graph"}, (("files/0/rows", tmp_path / "rows"),))


@pytest.fixture
def joined() -> StubJoinedHosts:
    """The hosts a and b, which listen for all sites at once."""
    made = StubJoinedHosts(stub_host("a", labels=("gpu",)), stub_host("b"))

    def listen() -> None:
        for host in made.present():
            host.take_report(SitePorts({"c": 1, "d": 2, "l": 3, "of another": 4}))

    made.on_pump = listen
    return made


@pytest.fixture
def addresses() -> Addresses:
    return Addresses(cast(SiteLayout, None), {})


@pytest.fixture
def hosts(joined: StubJoinedHosts, sent: SentGraph) -> SiteHosts:
    return SiteHosts(cast(JoinedHosts, joined), sent, "127.0.0.1", 60.0)


def test_each_host_listens_for_its_sites(
    hosts: SiteHosts, joined: StubJoinedHosts, addresses: Addresses
) -> None:
    hosts.listen(addresses, {"c": "a", "d": "b", "l": "a"})
    assert joined.sent == [("a", ListenFor(("c", "l"))), ("b", ListenFor(("d",)))]
    assert addresses.ports == {"c": 1, "d": 2, "l": 3}  # a host cannot give ports of other sites
    assert addresses.machines == dict.fromkeys("ab", "127.0.0.1")
    assert list(hosts.used()) == ["a", "b"]
    assert [hosts.sites_of(host) for host in joined.hosts] == [("c", "l"), ("d",)]


def test_a_host_that_is_gone_is_a_lost_site(
    hosts: SiteHosts, joined: StubJoinedHosts, addresses: Addresses
) -> None:
    joined.hosts[1].why_lost = "it has left"
    with pytest.raises(SiteLost, match=r"^host 'b' is gone before its sites began$"):
        hosts.listen(addresses, {"c": "a", "d": "b"})


@pytest.mark.parametrize(
    ("why_lost", "why"), [("it has left", "it has left"), ("", "it did not listen within 30 s")]
)
def test_a_host_that_does_not_listen_is_lost(
    why_lost: str, why: str, hosts: SiteHosts, joined: StubJoinedHosts, addresses: Addresses
) -> None:
    def leave() -> None:
        joined.hosts[0].why_lost = why_lost

    joined.on_pump = leave
    with pytest.raises(SiteLost, match=f"^host 'a' is lost: {why}$"):
        hosts.listen(addresses, {"c": "a"})
    assert addresses.ports == {}


def test_a_host_is_sent_the_files_once_and_the_configuration_of_its_own_sites(
    hosts: SiteHosts, joined: StubJoinedHosts, addresses: Addresses
) -> None:
    hosts.listen(addresses, {"c": "a", "d": "b"})
    joined.sent.clear()
    hosts.start({"seed": 0}, {"c": {"n": 1}, "d": {"n": 2}})
    hosts.start_again("c", {"seed": 0}, {"n": 3})
    config, file = {"seed": 0, "title": "graph"}, FilePiece("files/0/rows", b"12")
    assert joined.sent == [
        ("a", file),
        ("a", StartSites(config, {"c": {"n": 1}})),
        ("b", file),
        ("b", StartSites(config, {"d": {"n": 2}})),
        ("a", StartSites(config, {"c": {"n": 3}})),
    ]


def test_a_lost_site_goes_to_its_own_host_or_to_that_with_the_fewest_sites(
    hosts: SiteHosts, joined: StubJoinedHosts, addresses: Addresses
) -> None:
    joined.hosts.append(stub_host("e"))
    hosts.listen(addresses, {"c": "a", "d": "b", "l": "a"})
    assert hosts.listen_again("c", "any", addresses, []) == "a"
    assert hosts.listen_again("c", "any", addresses, ["a"]) == "e"
    assert hosts.listen_again("c", "gpu", addresses, ["a"]) == ""
    assert joined.sent[-1] == ("e", ListenFor(("c",)))


def test_a_lost_site_finds_no_host_if_the_only_one_does_not_listen(
    hosts: SiteHosts, joined: StubJoinedHosts, addresses: Addresses
) -> None:
    joined.on_pump = lambda: None
    assert hosts.listen_again("c", "gpu", addresses, []) == ""


def test_a_site_is_dead_if_it_has_ended_or_its_host_is_lost(
    hosts: SiteHosts, joined: StubJoinedHosts, addresses: Addresses
) -> None:
    hosts.listen(addresses, {"c": "a"})
    assert hosts.find_failure("c") is hosts.find_failure("on this machine") is None
    joined.hosts[0].take_report(SiteEnded("c", "killed by SIGKILL"))
    assert hosts.find_failure("c") == "killed by SIGKILL, on host 'a'"
    assert hosts.listen_again("c", "any", addresses, []) == "a"
    assert hosts.find_failure("c") is None
    joined.hosts[0].why_lost = "its connection is closed"
    assert hosts.find_failure("c") == "host 'a' is lost: its connection is closed"


def test_only_the_host_of_a_site_is_asked_to_disturb_it(
    hosts: SiteHosts, joined: StubJoinedHosts, addresses: Addresses
) -> None:
    hosts.listen(addresses, {"c": "a", "d": "b"})
    joined.sent.clear()
    for disturbance in (SiteSignal("d", signal.SIGKILL), HostSilence("a", 1.0)):
        hosts.disturb(disturbance)
    assert joined.sent == [
        ("b", Disturb(SiteSignal("d", signal.SIGKILL))),
        ("a", Disturb(HostSilence("a", 1.0))),
    ]


def test_sites_are_ended_for_others_and_a_host_that_does_not_is_left_out(
    hosts: SiteHosts, joined: StubJoinedHosts, addresses: Addresses
) -> None:
    hosts.listen(addresses, {"c": "a", "d": "b"})
    joined.sent.clear()
    joined.on_pump = lambda: joined.hosts[0].take_report(SitesEnded())
    hosts.end()
    assert joined.sent == [("a", EndSites()), ("b", EndSites())]
    assert [host.why_lost for host in joined.hosts] == ["", "it did not end its sites within 5 s"]
    assert hosts.used() == {}
