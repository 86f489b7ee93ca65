"""The layout of a run: which instance lives on which site, what kind of site it is, and what connects two sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from flowrl.core.errors import UsageError
from flowrl.graph.host_assignment import ShareId, assign_hosts, assign_local_gpus
from flowrl.graph.host_offers import HostOffer
from flowrl.graph.model import Edge, Graph, link_edges
from flowrl.graph.placement import InstanceId, Placement
from flowrl.graph.places import MAIN, Needs
from flowrl.graph.site_shares import SiteShare, placed_shares
from flowrl.machine.resources import MachineResources, machine_resources

SiteKind = Literal["thread", "process"]
Reach = Literal["site", "process", "machine", "network"]

COORDINATOR = "coordinator"  # it fires no node


@dataclass(frozen=True, slots=True)
class SiteLayout:
    """The sites of a run, in order, and the instances on each."""

    kinds: Mapping[str, SiteKind]
    site_of: Mapping[InstanceId, str]
    hosts: Mapping[str, str] = field(default_factory=dict)  # of the sites on other machines
    needs: Mapping[str, Needs] = field(default_factory=dict)  # of the sites that need something
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # that a site sees
    places: Mapping[str, str] = field(default_factory=dict)  # that the placement gives hosted sites
    # Sites without which a run may begin, by site: those of other replicas, whose hosts they do not share.
    later: Mapping[str, frozenset[str]] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()  # of the later ones, those for which no host is there
    # By the input of a state that relays pass on: the site that sends its versions to each reader and each relay.
    state_senders: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def instances_on(self, site: str) -> list[InstanceId]:
        return [instance for instance, at in self.site_of.items() if at == site]

    def host(self, site: str) -> str:
        """The host of a site; '' is the machine where the run was started."""
        return self.hosts.get(site, "")

    @property
    def relays(self) -> frozenset[str]:
        """The sites without instances, which pass on versions of states."""
        return frozenset(self.kinds) - set(self.site_of.values())

    def state_sender(self, edge: Edge, site: str) -> str:
        """Return the site that sends another one the versions of a state edge: that of the state, or a relay."""
        own = self.site_of[edge.source.node, 0]
        return self.state_senders.get(str(edge.to), {}).get(site, own)

    def relays_of(self, edge: Edge) -> list[str]:
        """Return the relays of a state edge."""
        relays = self.relays
        return [site for site in self.state_senders.get(str(edge.to), ()) if site in relays]

    def reach(self, a: str, b: str) -> Reach:
        """Return the smallest unit that two sites share; it decides which transport connects them."""
        if a == b:
            return "site"
        if self.host(a) != self.host(b):
            return "network"
        threads = all(self.kinds.get(s, "thread") == "thread" for s in (a, b))
        return "process" if threads else "machine"


def resources_here(graph: Graph, placement: Placement) -> MachineResources | None:
    """What this machine has. It is found out only if a node that is put on it needs something."""
    shares = placed_shares(graph, placement)
    asked = any(share.is_local and share.needs != Needs() for share in shares)
    return machine_resources() if asked else None


def unmet_needs(graph: Graph, placement: Placement, offers: Sequence[HostOffer]) -> str:
    """What nodes lack if these are all hosts; empty if each has what it needs."""
    return assign_hosts(placed_shares(graph, placement), offers).unmet_text()


def make_layout(
    graph: Graph,
    placement: Placement,
    offers: Sequence[HostOffer] | None = None,
    here: MachineResources | None = None,
) -> SiteLayout:
    """The layout of a placement. Replicas whose site is not shared have a site each.

    Without offers, the hosts of each place stand for one host. With `here`, what this machine has, its GPUs are given
    to the sites that need them, and it is an error if they are too few.
    """
    shares = placed_shares(graph, placement)
    gpus_of: dict[ShareId, tuple[str, ...]] = {}
    hosts_of: dict[ShareId, str] = {}
    absent_shares: set[ShareId] = set()
    if here is not None:
        gpus_of |= assign_local_gpus(shares, here)
    if offers is not None:
        assigned = assign_hosts(shares, offers)
        if text := assigned.unmet_text():
            raise UsageError(f"placement: {text}")
        hosts_of, gpus_of = assigned.hosts, {**gpus_of, **assigned.gpus}
        absent_shares = assigned.absent
    kinds: dict[str, SiteKind] = {}
    site_of: dict[InstanceId, str] = {}
    hosts: dict[str, str] = {}
    needs: dict[str, Needs] = {}
    gpus: dict[str, tuple[str, ...]] = {}
    places: dict[str, str] = {}
    site_of_share: dict[ShareId, str] = {}
    for share in shares:
        place, _, label = share.site.partition(":")
        identity = share.site, share.replica
        machine = hosts_of.get(identity, place)
        site = _site_name(machine, label, share.replica if share.has_own_site else 0)
        kinds.setdefault(site, "thread" if place in (MAIN, "thread") else "process")
        site_of |= dict.fromkeys(share.instances, site)
        site_of_share[identity] = site
        if not share.is_local:
            hosts[site], places[site] = machine, place
        if share.needs != Needs():
            needs[site] = needs.get(site, Needs()) + share.needs
        if given := gpus_of.get(identity):
            gpus[site] = (*gpus.get(site, ()), *given)
    _check_links(graph, site_of)
    order = {name: number for number, name in enumerate(graph.nodes)}
    in_order = dict(sorted(site_of.items(), key=lambda item: (order[item[0][0]], item[0][1])))
    later = _later_sites(shares, site_of_share)
    absent = frozenset(site_of_share[identity] for identity in absent_shares)
    return SiteLayout(kinds, in_order, hosts, needs, gpus, places, later, absent)


def _later_sites(
    shares: Sequence[SiteShare], site_of: Mapping[ShareId, str]
) -> dict[str, frozenset[str]]:
    """The sites without which a run may begin, each with those of the other replicas."""
    of_key: dict[str, set[str]] = {}
    for (key, _), site in site_of.items():
        of_key.setdefault(key, set()).add(site)
    later = [share for share in shares if share.may_be_absent]
    return {
        site: frozenset(of_key[share.site] - {site})
        for share in later
        for site in [site_of[share.site, share.replica]]
    }


def _site_name(machine: str, label: str, replica: int) -> str:
    site = f"{machine}:{label}" if label else machine
    return f"{site}#{replica}" if replica else site


def _check_links(graph: Graph, site_of: Mapping[InstanceId, str]) -> None:
    """Refuse two sites for a client and a service that also fires: its firings and calls have one order."""
    for edge in link_edges(graph):
        service, client = edge.source.node, edge.to.node
        apart = site_of[service, 0] != site_of[client, 0]
        if apart and graph.nodes[service].fires:
            raise UsageError(
                f"placement: {client} calls {service}, which also fires; put both on one site"
            )
