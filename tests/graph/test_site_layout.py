"""Which instances are on which site and machine, and the transport between two sites."""

from __future__ import annotations

import pytest

from flowrl.checks.check import check
from flowrl.core.errors import UsageError
from flowrl.graph.host_offers import HostOffer
from flowrl.graph.loading import load_data
from flowrl.graph.model import Graph
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import COORDINATOR, SiteLayout, make_layout
from flowrl.runtime.sites.addresses import Addresses, peers_of_sites
from tests.toys.toy_runs import toy_graph

OFFERS = [HostOffer("a-2"), HostOffer("a-1"), HostOffer("b", ("gpu",))]


@pytest.fixture
def graph() -> Graph:
    """A graph whose source has two replicas."""
    nodes = {"c": {"type": "Source", "replicas": 3}, "r": "Relay", "l": "Learner"}
    return check(load_data(toy_graph(nodes, ["c -> r -> l", "l.weights -> c.weights"]))).graph


def laid_out(graph: Graph, text: str, offers: list[HostOffer] | None = OFFERS) -> SiteLayout:
    return make_layout(graph, resolve_placement(graph, text), offers)


def test_replicas_are_dealt_to_the_hosts_that_match_in_turn(graph: Graph) -> None:
    layout = laid_out(graph, "c=a-*,l=gpu")
    assert dict(layout.site_of) == {
        **{("c", 0): "a-1:c", ("c", 1): "a-2:c#1", ("c", 2): "a-1:c#2"},
        **{("r", 0): "main", ("l", 0): "b:l"},
    }
    assert dict(layout.hosts) == {"a-1:c": "a-1", "a-2:c#1": "a-2", "a-1:c#2": "a-1", "b:l": "b"}


def test_a_named_site_is_one_on_each_host(graph: Graph) -> None:
    layout = laid_out(graph, "c=a-*:x,r=a-1:x")
    assert layout.instances_on("a-1:x") == [("c", 0), ("c", 2), ("r", 0)]
    assert layout.instances_on("a-2:x") == [("c", 1)]


def test_without_offers_each_place_stands_for_one_host(graph: Graph) -> None:
    layout = laid_out(graph, "c=a-*,l=gpu", None)
    assert layout.instances_on("a-*:c#1") == [("c", 1)]
    assert layout.reach("a-*:c", "gpu:l") == "network"
    assert layout.reach("a-*:c", "a-*:c#1") == "machine"


def test_a_place_that_no_host_matches_is_reported(graph: Graph) -> None:
    with pytest.raises(UsageError) as error:
        laid_out(graph, "c=tpu")
    assert str(error.value) == (
        "placement: 3 replicas of c need a host at 'tpu'; hosts: a-1 (0 cores, 0 B, no GPU), "
        "a-2 (0 cores, 0 B, no GPU), b (0 cores, 0 B, no GPU)"
    )


@pytest.mark.parametrize(
    ("a", "b", "reach"),
    [
        ("main", "main", "site"),
        ("main", "thread:l", "process"),
        ("thread:l", "process:r", "machine"),
        (COORDINATOR, "main", "process"),
        (COORDINATOR, "b:c", "network"),
        ("b:c", "b:c#1", "machine"),
        ("b:c", "process:r", "network"),
    ],
)
def test_the_transport_between_two_sites(graph: Graph, a: str, b: str, reach: str) -> None:
    layout = laid_out(graph, "c=b,l=thread,r=process")
    assert layout.reach(a, b) == layout.reach(b, a) == reach


@pytest.fixture
def addresses(graph: Graph) -> Addresses:
    """Addresses of a layout with `c` on hosts, `r` in a process of the run's machine, `l` on the main site."""
    layout = laid_out(graph, "c=a-*,r=process")
    peers = peers_of_sites(graph, layout, [n for n in layout.kinds if layout.instances_on(n)])
    found = Addresses(layout, peers)
    found.local.update({"process:r": "ipc:///r", "main": "ipc:///m", COORDINATOR: "ipc:///c"})
    found.machines.update({"a-1": "10.0.0.1", "a-2": "fd00::2"})
    found.this_machine.update({"a-1": "10.0.0.9", "a-2": "fd00::9"})
    found.ports.update({"a-1:c": 1, "a-2:c#1": 2, "a-1:c#2": 3, "process:r": 4, COORDINATOR: 5})
    return found


def test_a_site_talks_with_the_coordinator_and_along_its_edges(addresses: Addresses) -> None:
    assert addresses.peers["process:r"] == ["a-1:c", "a-1:c#2", "a-2:c#1", COORDINATOR, "main"]
    assert addresses.peers["a-1:c"] == [COORDINATOR, "main", "process:r"]


@pytest.mark.parametrize(
    ("name", "by", "address"),
    [
        ("process:r", "main", "ipc:///r"),
        ("process:r", "a-1:c", "tcp://10.0.0.9:4"),  # each host sees this machine in its own way
        ("process:r", "a-2:c#1", "tcp://[fd00::9]:4"),
        ("a-2:c#1", "process:r", "tcp://[fd00::2]:2"),
        ("a-2:c#1", "a-1:c", "tcp://[fd00::2]:2"),
        ("a-1:c#2", "a-1:c", ""),  # in that host's own folder
        (COORDINATOR, "a-1:c", "tcp://10.0.0.9:5"),
    ],
)
def test_an_address_depends_on_who_asks(
    addresses: Addresses, name: str, by: str, address: str
) -> None:
    assert addresses.address_for(name, by) == address


def test_sites_know_the_keys_of_those_on_other_machines_only(addresses: Addresses) -> None:
    mine, theirs = addresses.keys("process:r"), addresses.keys("a-1:c")
    assert mine is not None
    assert theirs is not None
    assert set(mine.known) == {"a-1:c", "a-1:c#2", "a-2:c#1"}
    assert mine.known["a-1:c"] == theirs.public
    assert "secret" not in repr(mine)


def test_sites_of_one_machine_need_no_keys(graph: Graph) -> None:
    layout = laid_out(graph, "processes")
    found = Addresses(layout, peers_of_sites(graph, layout, list(layout.kinds)))
    assert all(found.keys(name) is None for name in (*layout.kinds, COORDINATOR))
