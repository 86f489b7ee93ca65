"""The addresses and keys of the sites of a run.

Threads of a process reach each other by name, processes of a machine through its socket folder, and sites on
different machines through the network. So a site may have several addresses, and each peer uses one of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.channels.keys import Keys, new_pair
from flowrl.checks.pacing import nodes_paced_by
from flowrl.graph.model import Graph
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.network_address import tcp_url


def peers_of_sites(graph: Graph, layout: SiteLayout, names: list[str]) -> dict[str, list[str]]:
    """Return the peers of each site: the coordinator, and those with which it shares an edge, a pace or a group.

    Of a state that relays pass on, a reader shares the edge with the site that sends it the versions.
    """
    sites_of: dict[str, set[str]] = {}
    for (node, _), site in layout.site_of.items():
        sites_of.setdefault(node, set()).add(site)
    found: dict[str, set[str]] = {COORDINATOR: set(names), **{n: {COORDINATOR} for n in names}}

    def add(node: str, other: str) -> None:
        for site in sites_of[node]:
            found[site] |= sites_of[other]
        for site in sites_of[other]:
            found[site] |= sites_of[node]

    for edge in graph.edges:
        senders = layout.state_senders.get(str(edge.to), {})
        for site in {*sites_of[edge.to.node], *senders} if senders else ():
            sender = layout.state_sender(edge, site)
            found[site].add(sender)
            found[sender].add(site)
        for source in edge.sources if not senders else ():
            add(source.node, edge.to.node)
    # The site of a paced node may have to be notified of the pacing node's firings.
    for node in {s.node for e in graph.edges if e.every is not None for s in e.sources}:
        for paced in nodes_paced_by(graph, node):
            add(node, paced)
    for name, spec in graph.nodes.items():
        if spec.is_group:
            add(name, name)
    return {name: sorted(peers - {name}) for name, peers in found.items()}


class Addresses:
    """The addresses and keys of all sites. Addresses are added when the sites start to listen."""

    def __init__(self, layout: SiteLayout, peers: Mapping[str, list[str]]) -> None:
        self.peers = peers
        # By site of this machine: its address for peers of this machine.
        self.local: dict[str, str] = {}
        # By site: the port at which it listens on the network.
        self.ports: dict[str, int] = {}
        # By host: the address of its machine, and the address at which it reaches this machine.
        self.machines: dict[str, str] = {}
        self.this_machine: dict[str, str] = {}
        self.layout = layout
        pairs = {name: new_pair() for name in peers if self.has_remote_peer(name)}
        self._keys = {
            name: Keys(*pair, {peer: pairs[peer][0] for peer in self._remote_peers(name)})
            for name, pair in pairs.items()
        }

    def _remote_peers(self, name: str) -> list[str]:
        host = self.layout.host
        return [peer for peer in self.peers[name] if host(peer) != host(name)]

    def has_remote_peer(self, name: str) -> bool:
        """Return whether a site has a peer on another machine."""
        return bool(self._remote_peers(name))

    def keys(self, name: str) -> Keys | None:
        """Return the keys of a site with a remote peer; None for other sites."""
        return self._keys.get(name)

    def address_for(self, name: str, peer: str) -> str:
        """Return the address of a site for a peer; empty if both are on one host, which uses a folder of its own."""
        host, peer_host = self.layout.host(name), self.layout.host(peer)
        if host == peer_host:
            return "" if host else self.local[name]
        machine = self.machines[host] if host else self.this_machine[peer_host]
        return tcp_url(machine, self.ports[name])
