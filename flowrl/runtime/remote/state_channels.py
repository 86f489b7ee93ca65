"""The channels by which versions of states go from site to site: to their readers, and to relays."""

from __future__ import annotations

from dataclasses import dataclass

from flowrl.channels import ChannelLimits
from flowrl.graph.model import Edge, Graph
from flowrl.graph.replica_pairs import pair_label, relay_label
from flowrl.graph.site_layout import SiteLayout

EVERY_VERSION = ChannelLimits(tokens=256)  # most tokens only state that there is no new version
IN_PIECES = ChannelLimits(tokens=256, bytes=1 << 30)  # a version is several tokens
NEWEST_VERSION = ChannelLimits(tokens=1)


@dataclass(frozen=True, slots=True)
class StateChannel:
    """A channel of the versions of a state edge."""

    name: str
    label: str  # for people
    sender: str  # the site of the state, or a relay
    taker: str  # the site of the reader, or a relay
    carries_newest: bool  # and may leave out versions, otherwise none
    in_pieces: bool  # large versions, so that relays pass on what has arrived of them

    @property
    def limits(self) -> ChannelLimits:
        if self.in_pieces:
            return IN_PIECES
        return NEWEST_VERSION if self.carries_newest else EVERY_VERSION


class StateChannels:
    """All channels of the states of a run."""

    def __init__(self, graph: Graph, layout: SiteLayout, free_sites: frozenset[str]) -> None:
        self._graph, self._layout, self._free_sites = graph, layout, free_sites

    def to_reader(self, edge: Edge, replica: int) -> StateChannel:
        """Return the channel to a replica of the reader of an edge, on another site than the state."""
        site, label = self._layout.site_of[edge.to.node, replica], pair_label(edge, (0, 0, replica))
        return self._channel(edge, f"{edge.to}#{replica}", label, site)

    def to_relay(self, edge: Edge, relay: str) -> StateChannel:
        return self._channel(edge, f"{edge.to}@{relay}", relay_label(edge, relay), relay)

    def sent_by(self, site: str, edge: Edge) -> list[StateChannel]:
        """Return the channels by which a site sends versions of an edge. Relays come first: others wait for them."""
        replicas = range(self._graph.nodes[edge.to.node].replicas)
        relays = [self.to_relay(edge, relay) for relay in self._layout.relays_of(edge)]
        channels = [*relays, *(self.to_reader(edge, replica) for replica in replicas)]
        return [c for c in channels if c.sender == site and c.taker != site]

    def _channel(self, edge: Edge, name: str, label: str, taker: str) -> StateChannel:
        sender, source = self._layout.state_sender(edge, taker), edge.source.node
        # A free site has no rounds in common with other sites, so a lag means nothing there.
        is_free = not self._free_sites.isdisjoint({self._layout.site_of[source, 0], taker})
        newest = edge.every is None and (edge.latest or is_free)
        in_pieces = not newest and not self._layout.relays.isdisjoint({sender, taker})
        return StateChannel(name, label, sender, taker, newest, in_pieces)
