"""Which host takes which node, by what the hosts have and what the nodes need."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.core.errors import UsageError
from flowrl.graph import site_layout
from flowrl.graph.host_assignment import HostAssignment, assign_hosts, local_warnings
from flowrl.graph.host_offers import HostOffer
from flowrl.graph.loading import load_data
from flowrl.graph.model import Graph
from flowrl.graph.placement import read_placement
from flowrl.graph.places import Needs
from flowrl.graph.site_layout import SiteLayout, make_layout, resources_here, unmet_needs
from flowrl.graph.site_shares import placed_shares
from flowrl.machine.resources import MachineResources
from tests.toys.toy_runs import toy_graph

GB = 10**9


def cpu(name: str, cores: int = 4) -> HostOffer:
    return HostOffer(name, ("cpus",), MachineResources(cores, 16 * GB))


def gpu(name: str, count: int = 1, cores: int = 4) -> HostOffer:
    gpus = tuple(str(number) for number in range(count))
    return HostOffer(name, ("gpus",), MachineResources(cores, 32 * GB, gpus))


def graph_of(replicas: int) -> Graph:
    nodes = {"c": {"type": "Source", "replicas": replicas}, "r": "Relay", "l": "Learner"}
    return check(load_data(toy_graph(nodes, ["c -> r -> l", "l.weights -> c.weights"]))).graph


def assigned(written: dict[str, Any], offers: list[HostOffer], replicas: int = 3) -> HostAssignment:
    graph = graph_of(replicas)
    return assign_hosts(placed_shares(graph, read_placement(graph, written)), offers)


def hosts_of(done: HostAssignment) -> dict[str, list[str]]:
    """The hosts of each node's replicas."""
    found: dict[str, list[str]] = {}
    for (site, _), host in sorted(done.hosts.items()):
        found.setdefault(site.partition(":")[2], []).append(host)
    return found


def test_a_node_goes_to_a_host_that_has_what_it_needs() -> None:
    done = assigned({"l": {"gpus": 1}}, [cpu("a"), gpu("g"), cpu("b")])
    assert hosts_of(done) == {"l": ["g"]}
    assert done.gpus["any:l", 0] == ("0",)


def test_replicas_are_dealt_in_turn_to_hosts_with_room() -> None:
    offers = [cpu("cpu-1", 2), cpu("cpu-2", 6), cpu("cpu-10", 6)]
    done = assigned({"c": {"place": "cpu-*", "cores": 2}}, offers, replicas=6)
    assert hosts_of(done)["c"] == ["cpu-1", "cpu-2", "cpu-10", "cpu-2", "cpu-2", "cpu-10"]


def test_the_order_in_which_hosts_join_does_not_matter() -> None:
    offers = [cpu(f"cpu-{n}", n) for n in range(1, 9)] + [gpu("g-1", 2), gpu("g-2", 2)]
    written = {"c": {"cores": 2}, "l": {"gpus": 1, "cores": 4}, "r": {"cores": 1}}
    expected = assigned(written, offers, replicas=10)
    for seed in range(5):
        random.Random(seed).shuffle(offers)
        done = assigned(written, offers, replicas=10)
        assert (done.hosts, done.gpus) == (expected.hosts, expected.gpus)


def test_what_few_hosts_can_take_is_assigned_first() -> None:
    """The collectors come first in the graph, and would otherwise fill the only host with a GPU."""
    offers = [gpu("a", cores=4), cpu("b", cores=8)]
    done = assigned({"c": {"cores": 2}, "l": {"gpus": 1, "cores": 4}}, offers, replicas=4)
    assert hosts_of(done) == {"l": ["a"], "c": ["b"] * 4}


def test_what_needs_most_is_assigned_first_among_equal_hosts() -> None:
    offers = [cpu("a", 4), cpu("b", 4)]
    done = assigned({"c": {"cores": 1}, "l": {"cores": 4}}, offers, replicas=4)
    assert hosts_of(done) == {"l": ["a"], "c": ["b"] * 4}


def test_replicas_that_are_spread_share_no_host() -> None:
    offers = [cpu("a", 64), cpu("b", 2), cpu("c", 2)]
    spread = {"c": {"cores": 2, "spread": True}}
    assert sorted(hosts_of(assigned(spread, offers))["c"]) == ["a", "b", "c"]
    done = assigned(spread, offers, replicas=4)
    assert [share.replica for share in done.unmet] == [3]
    assert done.unmet_text().startswith(
        "c#3 needs 2 cores on a host without another replica; hosts: a "
    )


def test_each_site_of_a_host_is_given_other_gpus() -> None:
    done = assigned({"c": {"gpus": 1}, "l": {"gpus": 2}}, [gpu("g", 5)])
    given = [name for gpus in done.gpus.values() for name in gpus]
    assert sorted(given) == ["0", "1", "2", "3", "4"]
    assert len(done.gpus["any:l", 0]) == 2


@pytest.mark.parametrize(
    ("needs", "text"),
    [
        (
            {"gpus": 2},
            "l needs 2 GPUs; hosts: a (4 cores, 16.0 GB, no GPU), g (4 cores, 32.0 GB, 1 GPU)",
        ),
        (
            {"memory": "64GB", "place": "g"},
            "l needs 64.0 GB at 'g'; hosts: a (4 cores, 16.0 GB, no GPU), g (4 cores, 32.0 GB, 1 GPU)",
        ),
    ],
)
def test_what_is_missing_is_told_with_what_the_hosts_have(needs: dict[str, Any], text: str) -> None:
    assert assigned({"l": needs}, [gpu("g"), cpu("a")]).unmet_text() == text


def test_what_other_nodes_have_taken_is_told() -> None:
    done = assigned({"c": {"cores": 3}}, [cpu("a"), cpu("b")])
    assert done.unmet_text() == (
        "c#2 needs 3 cores; hosts: a (4 cores, 16.0 GB, no GPU; left: 1 core, 16.0 GB, no GPU), "
        "b (4 cores, 16.0 GB, no GPU; left: 1 core, 16.0 GB, no GPU)"
    )
    text = assigned({"c": {"cores": 3}}, [cpu(f"a{n}", 2) for n in range(10)]).unmet_text()
    assert text.startswith("3 replicas of c need 3 cores each; hosts: a0 (2 cores, ")
    assert text.endswith(" and 2 more")


def test_needs_are_unmet_without_hosts() -> None:
    graph = graph_of(1)
    placement = read_placement(graph, {"l": {"gpus": 1}})
    assert unmet_needs(graph, placement, []) == "l needs 1 GPU; hosts: none"
    assert unmet_needs(graph, placement, [gpu("g")]) == ""


def test_a_thousand_replicas_fill_all_hosts() -> None:
    offers = [cpu(f"cpu-{n}", 16) for n in range(250)]
    done = assigned({"c": {"place": "cpu-*", "cores": 4}}, offers, replicas=1000)
    assert not done.unmet
    assert all(room.left.cores == 0 for room in done.rooms)


# layouts


def layout_of(
    written: dict[str, Any],
    offers: list[HostOffer] | None = None,
    here: MachineResources | None = None,
    replicas: int = 2,
) -> SiteLayout:
    graph = graph_of(replicas)
    return make_layout(graph, read_placement(graph, written), offers, here)


def test_a_layout_has_the_hosts_needs_and_gpus_of_its_sites() -> None:
    layout = layout_of({"c": {"gpus": 1, "cores": 1}}, [gpu("g", 2)])
    assert dict(layout.hosts) == {"g:c": "g", "g:c#1": "g"}
    assert dict(layout.gpus) == {"g:c": ("0",), "g:c#1": ("1",)}
    assert dict(layout.needs) == {"g:c": Needs(1, gpus=1), "g:c#1": Needs(1, gpus=1)}


def test_sites_of_this_machine_are_given_its_gpus() -> None:
    here = MachineResources(4, 8 * GB, ("2", "5"))
    layout = layout_of({"c": {"place": "process", "gpus": 1}, "l": "process"}, None, here)
    assert dict(layout.gpus) == {"process:c": ("2",), "process:c#1": ("5",)}


def test_a_shared_site_has_the_gpus_of_all_of_its_nodes() -> None:
    here = MachineResources(4, 8 * GB, ("2", "5", "7"))
    place = {"place": "process:all", "gpus": 1}
    assert dict(layout_of({"c": place, "l": place}, None, here).gpus) == {
        "process:all": ("2", "5", "7")
    }


@pytest.mark.parametrize(
    ("needs", "text"),
    [
        ({"gpus": 1}, "2 replicas of c need 1 GPU each"),
        ({"memory": "5GB"}, "2 replicas of c need 5.0 GB each"),
    ],
)
def test_too_few_gpus_or_too_little_memory_here_is_an_error(
    needs: dict[str, Any], text: str
) -> None:
    with pytest.raises(UsageError) as error:
        layout_of({"c": {"place": "process", **needs}}, None, MachineResources(4, 8 * GB, ("0",)))
    assert str(error.value) == (
        f"placement: {text}; this machine has 4 cores, 8.0 GB, 1 GPU; "
        "name hosts that have more (docs/hosts.md), or ask for less"
    )


def test_too_few_cores_here_are_a_warning() -> None:
    graph = graph_of(2)
    here = MachineResources(3, 8 * GB)
    placement = read_placement(graph, {"c": {"place": "process", "cores": 2}})
    assert make_layout(graph, placement, here=here).kinds.keys() >= {"process:c", "process:c#1"}
    assert list(local_warnings(placed_shares(graph, placement), here)) == [
        "placement: the nodes on this machine need 4 cores, and it has 3; the run will be slower"
    ]


def test_this_machine_is_looked_at_only_if_a_node_on_it_needs_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, found = graph_of(1), MachineResources(1)
    monkeypatch.setattr(site_layout, "machine_resources", lambda: found)
    assert resources_here(graph, read_placement(graph, {"l": "process"})) is None
    assert resources_here(graph, read_placement(graph, {"l": {"gpus": 1}})) is None
    asked = read_placement(graph, {"l": {"place": "process", "cores": 1}})
    assert resources_here(graph, asked) is found
