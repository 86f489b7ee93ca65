"""Where the sites of a run are reached, by whom, and with which keys.

Threads of a process reach each other by name, processes of a machine through the socket folder of that machine, and
sites on different machines through the network. So a site may have several addresses; who asks decides which.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.channels.keys import Keys, new_pair
from flowrl.checks.pacing import nodes_paced_by
from flowrl.graph.model import Graph
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.network_address import tcp_url


def neighbours(graph: Graph, layout: SiteLayout, names: list[str]) -> dict[str, list[str]]:
    """Whom each site talks with: the coordinator with all, a site with those it shares an edge with."""
    homes: dict[str, set[str]] = {}
    for (node, _), site in layout.site_of.items():
        homes.setdefault(node, set()).add(site)
    found: dict[str, set[str]] = {COORDINATOR: set(names), **{n: {COORDINATOR} for n in names}}
    for edge in graph.edges:
        for source in edge.sources:
            for a in homes[source.node]:
                found[a] |= homes[edge.to.node]
            for b in homes[edge.to.node]:
                found[b] |= homes[source.node]
    # where something is paced, it may have to be heard that a node has fired
    for node in {s.node for e in graph.edges if e.every is not None for s in e.sources}:
        for paced in nodes_paced_by(graph, node):
            for a in homes[node]:
                found[a] |= homes[paced]
            for b in homes[paced]:
                found[b] |= homes[node]
    return {name: sorted(peers - {name}) for name, peers in found.items()}


class Addresses:
    """All addresses, filled in while sites begin to listen."""

    def __init__(self, layout: SiteLayout, peers: Mapping[str, list[str]]) -> None:
        self.peers = peers
        self.near: dict[str, str] = {}  # on the machine where the run was started
        self.ports: dict[str, int] = {}  # on the network
        self.machines: dict[str, str] = {}  # each host's address
        self.seen_as: dict[str, str] = {}  # by host: under which address it sees this machine
        self._layout = layout
        pairs = {name: new_pair() for name in peers if self.is_far(name)}
        self._keys = {name: Keys(*pair, self._known(name, pairs)) for name, pair in pairs.items()}

    def is_far(self, name: str) -> bool:
        """Whether a site talks with another machine."""
        return any(self._apart(name, peer) for peer in self.peers[name])

    def _apart(self, a: str, b: str) -> bool:
        return self._layout.host(a) != self._layout.host(b)

    def _known(self, name: str, pairs: Mapping[str, tuple[bytes, bytes]]) -> dict[str, bytes]:
        return {peer: pairs[peer][0] for peer in self.peers[name] if self._apart(name, peer)}

    def keys(self, name: str) -> Keys | None:
        """A site's keys, if it talks with another machine."""
        return self._keys.get(name)

    def of(self, name: str, by: str) -> str:
        """The address of a site for another; '' is in the socket folder of the host that both are on."""
        there, here = self._layout.host(name), self._layout.host(by)
        if there == here:
            return "" if here else self.near[name]
        machine = self.machines[there] if there else self.seen_as[here]
        return tcp_url(machine, self.ports[name])
