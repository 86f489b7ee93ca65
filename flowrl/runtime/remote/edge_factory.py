"""A site as home of some instances: what stands in the place of those that live elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flowrl.channels import ChannelLimits, SiteChannels
from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import fires_without_rate, may_lack_tokens_anywhere
from flowrl.checks.pacing import nodes_paced_by
from flowrl.core.context import instance_key
from flowrl.core.state import EMPTY_CLOCK, State
from flowrl.graph.model import Edge, PortRef
from flowrl.graph.replica_pairs import ReplicaPair, pair_label
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.control.free_sites import free_sites
from flowrl.runtime.edge_factory import EdgeFactory
from flowrl.runtime.instances import Instances
from flowrl.runtime.remote.edges import LossyRemoteOutput, MergedInput, RemoteInput, RemoteOutput
from flowrl.runtime.remote.services import RemoteServices
from flowrl.runtime.remote.state_views import NewestView, PacedView, RoundEndView
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import Push, Queue, Take, Token
from flowrl.runtime.waits import Wait

SLACK_ROUNDS = 2  # rounds of tokens that may be under way beside the one that is worked on
STATE_TOKENS = 256  # ends of rounds: most are a word that nothing has changed


class RemoteEdgeFactory(EdgeFactory):
    """The home of one site's instances."""

    def __init__(
        self, checked: CheckedGraph, layout: SiteLayout, name: str, channels: SiteChannels
    ) -> None:
        super().__init__()
        self._checked, self._layout, self.name = checked, layout, name
        self._channels, self.waiting = channels, SiteWaits(channels, self.site)
        lags = [e.lag for e in checked.graph.edges if e.kind == "state"]
        self._beginnings: list[Callable[[], None]] = []
        self._views: dict[tuple[PortRef, int], Take] = {}
        self._rounds = max(lags, default=0) + SLACK_ROUNDS
        self._arriving: list[RemoteInput] = []
        self._newest: list[NewestView] = []
        self._starving: Wait | None = None
        self._free = free_sites(checked, layout)
        self._firings: dict[str, RemoteInput] = {}  # of nodes elsewhere that fire when they can
        self._told_firings: dict[str, list[Push]] = {}
        self._calls = RemoteServices(
            checked.graph, layout, name, self.waiting
        )  # before any mail comes
        for node in sorted(may_lack_tokens_anywhere(checked.program)):
            self._open_firings(node)

    def begin(self) -> None:
        """All lanes are open on all sites: send what is there before round 0."""
        for send in self._beginnings:
            send()

    def stub(self, instances: Instances, edge: Edge, replica: int, fresh: bool) -> Any:
        return self._calls.stub(instances, edge, replica, fresh)

    def serve(self, instances: Instances, node: str, replica: int) -> None:
        self._calls.serve(instances, node, replica)

    def has(self, node: str, replica: int) -> bool:
        return self._layout.site_of[node, replica] == self.name

    def taking(self, edge: Edge, lane: ReplicaPair, tokens: list[Token]) -> Queue:
        peer = self._layout.site_of[edge.sources[lane[0]].node, lane[1]]
        receiver = self._channels.open_receiver(_name(edge, lane), peer, limits=self._bound(edge))
        wait = self.waiting.on_input(
            instance_key(edge.to.node, lane[2]), pair_label(edge, lane), receiver
        )
        arriving = RemoteInput(self.waiting, receiver, wait, tokens)
        self._arriving.append(arriving)
        program, source = self._checked.program, edge.sources[lane[0]].node
        if source in fires_without_rate(program.schedule_of(source)):
            self._channels.on_receive(
                arriving.relieve
            )  # no rates bound what lies on the way in a loop
        elif edge.when_full == "wait":
            capacity = program.capacity[edge.to]
            self._channels.on_receive(partial(arriving.relieve_of_bytes, capacity))
        return arriving

    @property
    def heard_of_firings(self) -> bool:
        """Whether a node has fired elsewhere that paces something here."""
        return any(map(len, self._firings.values()))

    def wait_for_tokens(self, can_fire: Callable[[], bool]) -> None:
        """Until something has come that lets a node of this site fire."""
        if self._starving is None:
            names = sorted(
                {node for (node, _), site in self._layout.site_of.items() if site == self.name}
            )
            self._starving = self.waiting.on_input(", ".join(names), "anything to fire with")
        self.waiting.until(can_fire, self._starving, *(a.receiver for a in self._arriving))

    def irregularity_lines(self) -> list[str]:
        """What made this run differ from a deterministic one, but for drops."""
        return [line for newest in self._newest if (line := newest.line()) is not None]

    def take_no_more(self) -> None:
        """This site has ended before others, that may still have to give it tokens: they must not wait for it."""
        self._channels.on_receive(self._discard)
        self._discard()

    def _discard(self) -> None:
        for arriving in self._arriving:
            for _ in arriving.arrived():
                pass

    def giving(self, edge: Edge, lane: ReplicaPair) -> Queue:
        peer = self._layout.site_of[edge.to.node, lane[2]]
        sender = self._channels.open_sender(_name(edge, lane), peer, limits=self._bound(edge))
        who = instance_key(edge.sources[lane[0]].node, lane[1])
        wait = self.waiting.on_output(who, pair_label(edge, lane), sender)
        if edge.when_full == "drop_oldest":
            capacity = self._checked.program.capacity[edge.to]
            return LossyRemoteOutput(self.waiting, sender, wait, capacity)
        return RemoteOutput(self.waiting, sender, wait)

    def joined(self, edge: Edge, replica: int, queues: list[Queue]) -> Queue:
        wait = self.waiting.on_input(instance_key(edge.to.node, replica), f"any of {edge}")
        return MergedInput(self.waiting, queues, wait)

    def view(self, edge: Edge, replica: int) -> Take:
        """The same view whenever a phase connects the instance anew."""
        if (edge.to, replica) not in self._views:
            self._views[edge.to, replica] = self._new_view(edge, replica)
        return self._views[edge.to, replica]

    def _new_view(self, edge: Edge, replica: int) -> Take:
        """An end of each round, or the versions that pace, or the newest."""
        peer = self._layout.site_of[edge.source.node, 0]
        bound = self._state_bound(edge, replica)
        receiver = self._channels.open_receiver(_state_name(edge, replica), peer, limits=bound)
        who, name = instance_key(edge.to.node, replica), pair_label(edge, (0, 0, replica))
        arriving = RemoteInput(self.waiting, receiver, self.waiting.on_input(who, name, receiver))
        if edge.every is not None:
            return PacedView(self.site, arriving).take
        if self._is_newest(edge, replica):
            newest = NewestView(self.waiting, arriving)
            self._newest.append(newest)
            return newest.take
        return RoundEndView(self.waiting, self.site, arriving, edge.lag).take

    def _is_newest(self, edge: Edge, replica: int) -> bool:
        """Sites that fire when they can have no rounds in common with others: no lag can be kept."""
        ends = {
            self._layout.site_of[edge.source.node, 0],
            self._layout.site_of[edge.to.node, replica],
        }
        return edge.every is None and (edge.latest or not self._free.isdisjoint(ends))

    def _state_bound(self, edge: Edge, replica: int) -> ChannelLimits:
        return ChannelLimits(tokens=1) if self._is_newest(edge, replica) else _STATES

    def readers(self, edge: Edge, versions: StateVersions) -> list[Push]:
        """Each reader elsewhere is sent version 0, and then what each round ended with."""
        return [self._reader(edge, replica, versions) for replica in self._elsewhere(edge)]

    def _reader(self, edge: Edge, replica: int, versions: StateVersions) -> Push:
        leaving = self._state_lane(edge, replica)
        newest = self._is_newest(edge, replica)
        last: list[State | None] = [None]

        def push(token: Token) -> None:
            state = token[0]
            if state is not last[0]:
                leaving.append((state, EMPTY_CLOCK))
            elif not newest:
                leaving.append((None, EMPTY_CLOCK))
            last[0] = state

        self._beginnings.append(lambda: push((versions.newest(), EMPTY_CLOCK)))
        return push

    def paced(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        """What sends the versions that pace instances elsewhere."""
        return [self._teller(edge, replica, versions) for replica in self._elsewhere(edge)]

    def _teller(self, edge: Edge, replica: int, versions: StateVersions) -> Callable[[], None]:
        leaving = self._state_lane(edge, replica)
        return lambda: leaving.append((versions.newest(), EMPTY_CLOCK))

    def firings(self, node: str) -> Callable[[], bool]:
        """Whether a node that may find too few tokens has fired once more elsewhere."""
        arriving = self._firings[node]
        return lambda: next(arriving.arrived(), None) is not None

    def told_firings(self, node: str) -> list[Push]:
        """Every site where something is paced by a node here is told when it fires."""
        return self._told_firings.get(node, [])

    def _open_firings(self, node: str) -> None:
        """The lanes between a node that may starve and the sites of all that it paces."""
        where, channels = self._layout.site_of, self._channels
        paced = nodes_paced_by(self._checked.graph, node)
        home, sites = where[node, 0], {site for (name, _), site in where.items() if name in paced}
        if home == self.name:
            for site in sorted(sites - {home}):
                sender = channels.open_sender(_firings_name(node, site), site, limits=_STATES)
                leaving = RemoteOutput(self.waiting, sender, self.waiting.on_telling(node, sender))
                self._told_firings.setdefault(node, []).append(leaving.append)
        elif self.name in sites:
            receiver = channels.open_receiver(_firings_name(node, self.name), home, limits=_STATES)
            arriving = RemoteInput(self.waiting, receiver, self.waiting.on_turns(node, receiver))
            self._firings[node] = arriving
            self._arriving.append(arriving)

    def _state_lane(self, edge: Edge, replica: int) -> RemoteOutput:
        peer = self._layout.site_of[edge.to.node, replica]
        bound = self._state_bound(edge, replica)
        sender = self._channels.open_sender(_state_name(edge, replica), peer, limits=bound)
        name = pair_label(edge, (0, 0, replica))
        wait = self.waiting.on_output(edge.source.node, name, sender)
        if self._is_newest(edge, replica):
            return LossyRemoteOutput(self.waiting, sender, wait, capacity=1)
        return RemoteOutput(self.waiting, sender, wait)

    def _elsewhere(self, edge: Edge) -> list[int]:
        replicas = range(self._checked.graph.nodes[edge.to.node].replicas)
        return [r for r in replicas if not self.has(edge.to.node, r)]

    def _bound(self, edge: Edge) -> ChannelLimits:
        """Room for some rounds, unless the graph says how much."""
        capacity = self._checked.program.capacity[edge.to]
        return ChannelLimits(tokens=capacity if edge.capacity else capacity * self._rounds)


_STATES = ChannelLimits(tokens=STATE_TOKENS)


def _name(edge: Edge, lane: ReplicaPair) -> str:
    return f"{edge.to}:{lane[0]}.{lane[1]}.{lane[2]}"


def _state_name(edge: Edge, replica: int) -> str:
    return f"{edge.to}#{replica}"


def _firings_name(node: str, site: str) -> str:
    return f"{node}?{site}"
