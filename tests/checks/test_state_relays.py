"""Where relays of states are put: which site sends the versions to which others, and which readers have no relay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from flowrl.checks.check import CheckedGraph, check
from flowrl.checks.site_kinds import elastic_sites, inelastic_reason
from flowrl.checks.state_relays import MIN_SENDS, with_relays
from flowrl.graph.host_offers import HostOffer
from flowrl.graph.loading import load_data
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import SiteLayout, make_layout
from flowrl.runtime.sites.addresses import Addresses, peers_of_sites
from tests.toys.toy_runs import toy_graph

SEVERAL: dict[str, str] = {}  # no two hosts are known to be on one machine
PLAIN: list[Any] = ["c -> l", {"l.weights -> c.weights": {"lag": 1}}]


def placed(
    hosts: int, replicas: int, placement: str = "c=a-*", edges: list[Any] = PLAIN, **more: Any
) -> tuple[CheckedGraph, SiteLayout]:
    """A graph, and its layout on the hosts `b`, `a-0`, `a-1` … without relays."""
    nodes = {"c": {"type": "Source", "replicas": replicas}, "l": "Learner", **more}
    checked = check(load_data(toy_graph(nodes, edges))).require_sound()
    offers = [HostOffer(name) for name in ("b", *(f"a-{number}" for number in range(hosts)))]
    where = resolve_placement(checked.graph, placement)
    return checked, make_layout(checked.graph, where, offers)


def relayed(*arguments: Any, machine_ids: Mapping[str, str] = SEVERAL, **more: Any) -> SiteLayout:
    """The same layout with relays, from two sends on."""
    return with_relays(*placed(*arguments, **more), machine_ids, min_sends=2)


def senders(layout: SiteLayout) -> dict[str, str]:
    return dict(layout.state_senders["c.weights"])


def test_a_host_sends_to_two_others_and_a_last_one_with_one_reader_has_no_relay() -> None:
    assert senders(relayed(6, 6)) == {
        **{"relay@a-0": "main", "a-0:c": "relay@a-0"},
        **{"relay@a-1": "main", "a-1:c#1": "relay@a-1"},
        **{"a-2:c#2": "relay@a-0", "a-3:c#3": "relay@a-0"},
        **{"a-4:c#4": "relay@a-1", "a-5:c#5": "relay@a-1"},
    }


def test_several_readers_of_a_host_receive_versions_from_its_relay() -> None:
    layout = relayed(1, 3)
    readers = ("a-0:c", "a-0:c#1", "a-0:c#2")
    assert senders(layout) == {"relay@a-0": "main", **dict.fromkeys(readers, "relay@a-0")}
    assert layout.relays == {"relay@a-0"}
    assert layout.kinds["relay@a-0"] == "process"
    assert layout.host("relay@a-0") == "a-0"


@pytest.mark.parametrize("hosts", [2, 3, 7, 20, 64])
def test_every_reader_has_a_way_from_the_state_that_is_not_longer_than_the_tree_is_high(
    hosts: int,
) -> None:
    layout = relayed(hosts, hosts)
    found = senders(layout)
    sends = Counter(
        sender for taker, sender in found.items() if layout.host(taker) != layout.host(sender)
    )
    assert max(sends.values()) == 2
    assert sum(sends.values()) == hosts  # each host receives a version once
    levels = [level(found, layout.site_of["c", replica], layout) for replica in range(hosts)]
    assert max(levels) == (hosts + 1).bit_length() - 1


def level(found: dict[str, str], site: str, layout: SiteLayout) -> int:
    """How often a version is sent from machine to machine until a site has it."""
    if site not in found:
        return 0
    crosses = layout.host(site) != layout.host(found[site])
    return crosses + level(found, found[site], layout)


def test_few_sends_need_no_relay() -> None:
    for replicas in (MIN_SENDS - 1, MIN_SENDS):
        checked, layout = placed(2, replicas)
        assert bool(with_relays(checked, layout, SEVERAL).relays) is (replicas == MIN_SENDS)


def test_hosts_on_one_machine_share_a_relay() -> None:
    """Each machine receives a version once. Their first hosts send it to others."""
    layout = relayed(4, 4, machine_ids={"a-0": "x", "a-1": "y", "a-2": "x", "a-3": "y"})
    assert senders(layout) == {
        **{"relay@a-0": "main", "a-0:c": "relay@a-0", "a-2:c#2": "relay@a-0"},
        **{"relay@a-1": "main", "a-1:c#1": "relay@a-1", "a-3:c#3": "relay@a-1"},
    }


def test_hosts_on_the_machine_of_the_state_need_no_relay() -> None:
    hosts = [f"a-{number}" for number in range(MIN_SENDS + 1)]
    checked, layout = placed(len(hosts), len(hosts))
    with_run = dict.fromkeys(["", *hosts], "x")
    assert not with_relays(checked, layout, with_run).relays
    assert with_relays(checked, layout, dict.fromkeys(["", *hosts], "")).relays  # not known
    all_but_two = {**with_run, "a-0": "y", "a-1": "z"}
    assert senders(with_relays(checked, layout, all_but_two, min_sends=2)) == {
        "a-0:c": "main",
        "a-1:c#1": "main",
    }


def test_readers_on_the_machine_of_the_state_receive_versions_from_it() -> None:
    edges = [*PLAIN[:1], "l.weights -> c.weights", {"c -> d": {"when_full": "drop_oldest"}}]
    layout = relayed(2, 4, "c=a-*,l=a-0,d=main", edges, d="Drain")
    assert senders(layout) == {
        "relay@a-1": "a-0:l",
        **dict.fromkeys(("a-1:c#1", "a-1:c#3"), "relay@a-1"),
    }


def test_the_machine_of_the_run_has_a_relay_too() -> None:
    layout = relayed(1, 2, "c=process,l=a-0")
    assert senders(layout)["relay@main"] == "a-0:l"
    assert layout.host("relay@main") == ""


@pytest.mark.parametrize(
    ("edges", "has_relays"),
    [
        (["c -> l", "l.weights -> c.weights"], True),
        (["c -> l", {"l.weights -> c.weights": {"latest": True}}], True),
        # These readers may be lost, and start again.
        (
            [
                {"c -> l": {"when_full": "drop_oldest"}},
                {"l.weights -> c.weights": {"latest": True}},
            ],
            False,
        ),
    ],
    ids=["of a round", "the newest", "elastic"],
)
def test_which_readers_receive_versions_from_relays(edges: list[Any], has_relays: bool) -> None:
    assert bool(relayed(2, 4, edges=edges).relays) is has_relays


def test_versions_that_pace_a_reader_are_sent_to_it() -> None:
    evaluator = {"type": "Evaluator", "replicas": 4}
    edges = [*PLAIN, {"l.weights -> e": {"every": 2}}]
    assert not relayed(2, 1, "e=a-*", edges, e=evaluator).relays


def test_a_relay_is_not_elastic() -> None:
    checked, layout = placed(2, 4)
    layout = with_relays(checked, layout, SEVERAL, min_sends=2)
    assert not elastic_sites(checked, layout)
    assert inelastic_reason(checked, layout, "relay@a-0") == "it passes on versions of states"


def test_sites_connect_to_those_that_send_them_versions() -> None:
    """The stream of each collector to the learner's site remains."""
    checked, layout = placed(6, 6)
    layout = with_relays(checked, layout, SEVERAL, min_sends=2)
    peers = peers_of_sites(checked.graph, layout, list(layout.kinds))
    assert peers["relay@a-0"] == ["a-0:c", "a-2:c#2", "a-3:c#3", "coordinator", "main"]
    assert peers["a-2:c#2"] == ["coordinator", "main", "relay@a-0"]
    known = Addresses(layout, peers).keys("relay@a-0")
    assert known is not None
    assert set(known.known) == {"a-2:c#2", "a-3:c#3", "coordinator", "main"}
