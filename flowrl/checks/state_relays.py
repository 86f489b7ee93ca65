"""Puts relays between a state and its readers on other machines, so that versions go from machine to machine.

The machine of a learner sends each version of its weights to every reader on another machine. With many of them, its
link is what takes the time. With relays, versions go down a tree of machines: a machine receives each version once,
and sends it to two other machines at most, and to its own readers. A relay is a site on which no node is. So it passes
versions on whatever the nodes of its machine do, and it is started, watched and ended as any other site.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flowrl.checks.site_kinds import elastic_sites, free_sites
from flowrl.graph.model import Edge, Graph
from flowrl.graph.places import MAIN
from flowrl.graph.site_layout import SiteLayout

if TYPE_CHECKING:
    from flowrl.checks.check import CheckedGraph

FAN_OUT = 2  # the machines to which a machine sends a version
MIN_SENDS = 8  # of a version to other machines; with fewer, a tree is not faster (`python -m bench broadcast`)


def with_relays(
    checked: CheckedGraph,
    layout: SiteLayout,
    machine_ids: Mapping[str, str],
    min_sends: int = MIN_SENDS,
) -> SiteLayout:
    """Return the layout with the relays of all states that are sent to other machines so often.

    `machine_ids` are equal for hosts on the same machine; '' is the machine of the run. A host whose id is empty or
    missing is a machine of its own.
    """
    graph = checked.graph
    senders: dict[str, dict[str, str]] = {}
    hosts: dict[str, str] = {}  # of the relays
    edges = [edge for edge in graph.edges if edge.kind == "state" and edge.every is None]
    if all(_count(_far_readers(graph, layout, machine_ids, edge)) < min_sends for edge in edges):
        return layout
    elastic, free = elastic_sites(checked, layout), free_sites(checked, layout)
    for edge in edges:
        left_out = _left_out(layout, edge, elastic, free)
        readers = _far_readers(graph, layout, machine_ids, edge, left_out)
        if _count(readers) >= min_sends:
            senders[str(edge.to)] = tree = _senders(layout.site_of[edge.source.node, 0], readers)
            hosts |= {relay: host for host in readers if (relay := relay_on(host)) in tree}
    return replace(
        layout,
        kinds={**layout.kinds, **dict.fromkeys(hosts, "process")},
        hosts={**layout.hosts, **{relay: host for relay, host in hosts.items() if host}},
        state_senders=senders,
    )


def relay_on(host: str) -> str:
    """Return the name of the relay on a host. No other site has such a name."""
    return f"relay@{host or MAIN}"


def _left_out(
    layout: SiteLayout, edge: Edge, elastic: frozenset[str], free: frozenset[str]
) -> frozenset[str]:
    """Return the sites to which no relay sends the versions of an edge.

    When an elastic site is started again, only the site of the state sends it the newest version. All takers of a relay
    want either every version or the newest one, and free sites always want the newest.
    """
    wants_newest = edge.latest or layout.site_of[edge.source.node, 0] in free
    return elastic if wants_newest else elastic | free


def _far_readers(
    graph: Graph,
    layout: SiteLayout,
    machine_ids: Mapping[str, str],
    edge: Edge,
    left_out: frozenset[str] = frozenset(),
) -> dict[str, list[str]]:
    """Return the sites on other machines that read a state, each once for each replica.

    They are given by the first host of their machine.
    """

    def machine(site: str) -> str:
        host = layout.host(site)
        return machine_ids.get(host) or host

    source = layout.site_of[edge.source.node, 0]
    first_hosts: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for replica in range(graph.nodes[edge.to.node].replicas):
        site = layout.site_of[edge.to.node, replica]
        if machine(site) != machine(source) and left_out.isdisjoint({site, source}):
            host = first_hosts.setdefault(machine(site), layout.host(site))
            found.setdefault(host, []).append(site)
    return found


def _count(readers: Mapping[str, Sequence[str]]) -> int:
    return sum(map(len, readers.values()))


def _senders(source: str, readers: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the site that sends versions to each reader and relay.

    The machines are numbered from the top of the tree, level by level. One that has only one reader, and sends to no
    other machine, needs no relay.
    """
    hosts = list(readers)
    senders = {}
    for number, host in enumerate(hosts):
        parent = number // FAN_OUT - 1
        sender = relay_on(hosts[parent]) if parent >= 0 else source
        has_children = FAN_OUT * (number + 1) < len(hosts)
        if has_children or len(readers[host]) > 1:
            senders[relay_on(host)] = sender
            sender = relay_on(host)
        senders |= dict.fromkeys(readers[host], sender)
    return senders
