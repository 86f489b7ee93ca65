"""The layout of a run: which instance lives on which site, what kind of site it is, and what connects two sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from flowrl.core.errors import UsageError
from flowrl.graph.model import Graph, link_edges
from flowrl.graph.placement import LOCAL_PLACES, MAIN, HostOffer, matching_hosts, nodes_by_site

SiteKind = Literal["thread", "process"]
Reach = Literal["site", "process", "machine", "network"]
InstanceId = tuple[str, int]  # a node, and its replica's number

COORDINATOR = "coordinator"  # it fires no node


@dataclass(frozen=True, slots=True)
class SiteLayout:
    """The sites of a run, in order, and the instances on each."""

    kinds: Mapping[str, SiteKind]
    site_of: Mapping[InstanceId, str]
    hosts: Mapping[str, str] = field(default_factory=dict)  # of the sites on other machines

    def instances_on(self, site: str) -> list[InstanceId]:
        return [instance for instance, at in self.site_of.items() if at == site]

    def host(self, site: str) -> str:
        """The host of a site; '' is the machine where the run was started."""
        return self.hosts.get(site, "")

    def reach(self, a: str, b: str) -> Reach:
        """Return the smallest unit that two sites share; it decides which transport connects them."""
        if a == b:
            return "site"
        if self.host(a) != self.host(b):
            return "network"
        threads = all(self.kinds.get(s, "thread") == "thread" for s in (a, b))
        return "process" if threads else "machine"


def make_layout(
    graph: Graph, placement: Mapping[str, str], offers: Iterable[HostOffer] | None = None
) -> SiteLayout:
    """The layout of a placement. Replicas whose site is not shared have a site each.

    Without offers, each place that is a host stands for one host of that name.
    """
    kinds: dict[str, SiteKind] = {}
    site_of: dict[InstanceId, str] = {}
    hosts: dict[str, str] = {}
    known = None if offers is None else tuple(offers)
    for name, nodes in nodes_by_site(graph, placement).items():
        place, _, label = name.partition(":")
        machines = (
            [place]
            if known is None or place in LOCAL_PLACES
            else _matching_machines(place, known, nodes)
        )
        shared = name == MAIN or label not in nodes  # a site with a name of its own
        for node in nodes:
            for replica in range(graph.nodes[node].replicas):
                machine = machines[replica % len(machines)]
                site = _site_name(machine, label, 0 if shared else replica)
                kinds.setdefault(site, "thread" if place in (MAIN, "thread") else "process")
                site_of[node, replica] = site
                if place not in LOCAL_PLACES:
                    hosts[site] = machine
    _check_links(graph, site_of)
    return SiteLayout(kinds, site_of, hosts)


def _site_name(machine: str, label: str, replica: int) -> str:
    site = f"{machine}:{label}" if label else machine
    return f"{site}#{replica}" if replica else site


def _matching_machines(place: str, offers: tuple[HostOffer, ...], nodes: list[str]) -> list[str]:
    found = matching_hosts(place, offers)
    if not found:
        joined = ", ".join(o.name for o in offers) or "none"
        raise UsageError(
            f"placement: {nodes[0]} is put at '{place}', and no host has that name or label; "
            f"hosts: {joined}"
        )
    return found


def _check_links(graph: Graph, site_of: Mapping[InstanceId, str]) -> None:
    """Refuse two sites for a client and a service that also fires: its firings and calls have one order."""
    for edge in link_edges(graph):
        service, client = edge.source.node, edge.to.node
        apart = site_of[service, 0] != site_of[client, 0]
        if apart and graph.nodes[service].fires:
            raise UsageError(
                f"placement: {client} calls {service}, which also fires; put both on one site"
            )
