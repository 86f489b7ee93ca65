"""The edge factory of one of several sites, which makes local edges and the ends of edges to other sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from typing import Any

from flowrl.channels import ChannelLimits, Sender, SiteChannels
from flowrl.channels.wire_format import AS_IT_IS, WireFormat, wire_format
from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import (
    fires_without_rate,
    nodes_that_may_skip_firings,
)
from flowrl.checks.service_paths import ServicePath
from flowrl.checks.site_kinds import free_sites
from flowrl.core.context import Context, instance_key
from flowrl.core.saved_state import SavedState
from flowrl.graph.model import Edge
from flowrl.graph.replica_pairs import ReplicaPair, pair_label, replica_pairs_of
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.edge_factory import EdgeFactory, LocalService, Replica, Versions
from flowrl.runtime.group_exchange import GroupExchange
from flowrl.runtime.remote.edges import LossyRemoteOutput, MergedInput, RemoteInput, RemoteOutput
from flowrl.runtime.remote.firings import RemoteFirings
from flowrl.runtime.remote.group_exchange import SiteGroupExchange
from flowrl.runtime.remote.services import RemoteServices
from flowrl.runtime.remote.states import RemoteStates
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.site_state import Wait
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import Push, Queue, Take

SLACK_ROUNDS = 2  # rounds of tokens in a channel, in addition to the current round


class SiteEdgeFactory(EdgeFactory):
    """The `EdgeFactory` of one of several sites."""

    def __init__(
        self, checked: CheckedGraph, layout: SiteLayout, name: str, channels: SiteChannels
    ) -> None:
        super().__init__(checked)
        self.name = name
        self.site.restarts = channels.connections.epoch
        self.waits = SiteWaits(channels, self.site)
        self._layout, self._channels = layout, channels
        lags = [edge.lag for edge in checked.graph.edges if edge.kind == "state"]
        self._rounds_in_channel = max(lags, default=0) + SLACK_ROUNDS
        self._free_sites = free_sites(checked, layout)
        self._stream_senders: list[Sender] = []
        self._may_skip = nodes_that_may_skip_firings(checked.program)
        self._warm_up_rounds = sum(warm.rounds for warm in checked.program.warmup)
        # Whether all tokens are taken in, because their producers may wait for that.
        self.stands_still = False
        self._wire_formats: dict[tuple[str, str], WireFormat] = {("none", "float32"): AS_IT_IS}
        self._token_wait: Wait | None = None
        # Channels of services are opened before anything is received, because a client may call early.
        self._services = RemoteServices(checked.graph, layout, name, self.waits)
        self._firings = RemoteFirings(checked, layout, name, self.waits)
        self._states = RemoteStates(
            checked,
            layout,
            name,
            self.waits,
            self.site,
            self._free_sites,
            self.rounding,
            self._wire_format,
        )
        # Queues of tokens, and of notifications of firings.
        self._inputs: list[RemoteInput] = [*self._firings.inputs]
        self._awaited_inputs = [*self._firings.inputs]  # those for whose room producers wait
        # Those of nodes that may skip firings. `_take_in_for_skipped_firings` says why they are apart.
        self._skippable_inputs = [*self._firings.inputs]
        self.waits.take_in = self._take_in_for_skipped_firings

    def is_local(self, node: str, replica: int) -> bool:
        return self._layout.site_of[node, replica] == self.name

    def group_exchange(self, node: str) -> GroupExchange:
        replicas = range(self._checked.graph.nodes[node].replicas)
        sites = [self._layout.site_of[node, replica] for replica in replicas]
        return SiteGroupExchange(node, sites, self.name, self._channels, self.waits)

    @property
    def is_free(self) -> bool:
        """Whether the site fires whenever it has tokens, instead of in the rounds of all sites."""
        return self.name in self._free_sites

    # streams

    def make_queues(self, edge: Edge) -> dict[ReplicaPair, Queue]:
        pairs = replica_pairs_of(self._checked.graph, edge)
        queues: dict[ReplicaPair, Queue] = {}
        for pair in pairs:
            produces = self.is_local(edge.sources[pair[0]].node, pair[1])
            consumes = self.is_local(edge.to.node, pair[2])
            if produces and consumes:
                queues[pair] = self._local_queue(edge)
            elif consumes:
                queues[pair] = self._remote_input(edge, pair)
            elif produces:
                queues[pair] = self._remote_output(edge, pair)
        return self._merge(edge, queues, len(pairs)) if edge.merge == "any" else queues

    def _merge(
        self, edge: Edge, queues: dict[ReplicaPair, Queue], sources: int
    ) -> dict[ReplicaPair, Queue]:
        """Merge the queues of each local consumer into one, to which all its producers push (`merge: any`)."""
        merged = {p: queue for p, queue in queues.items() if not self.is_local(edge.to.node, p[2])}
        for replica in {pair[2] for pair in queues} - {pair[2] for pair in merged}:
            own = [pair for pair in queues if pair[2] == replica]
            remote = [p for p in own if not self.is_local(edge.sources[p[0]].node, p[1])]
            local = self._local_queue(edge, sources)
            if remote:
                parts = [local, *(queues[pair] for pair in remote)]
                wait = self.waits.on_input(instance_key(edge.to.node, replica), f"any of {edge}")
                whole: Queue = MergedInput(self.waits, parts, wait)
            else:
                whole = local
            merged |= {pair: whole if pair in remote else local for pair in own}
            merged[min(own)] = whole  # the consumer takes from the queue of its first pair
        return merged

    def _remote_input(self, edge: Edge, pair: ReplicaPair) -> RemoteInput:
        source, program = edge.sources[pair[0]].node, self._checked.program
        peer = self._layout.site_of[source, pair[1]]
        limits, wire = self._stream_limits(edge), self._wire_format(edge)
        receiver = self._channels.open_receiver(
            _stream_channel(edge, pair), peer, limits=limits, wire=wire
        )
        consumer = instance_key(edge.to.node, pair[2])
        wait = self.waits.on_input(consumer, pair_label(edge, pair), receiver)
        queue = RemoteInput(self.waits, receiver, wait, self._initial_tokens(edge))
        self._inputs.append(queue)
        if edge.when_full == "wait":
            self._awaited_inputs.append(queue)
        if source in fires_without_rate(program.schedule_of(source)):
            # No rate limits the tokens in a loop, so the producer must never wait for room.
            self._channels.on_receive(queue.empty_receiver)
        elif edge.when_full == "wait":
            self._channels.on_receive(partial(queue.make_room, program.capacity[edge.to]))
            if edge.to.node in self._may_skip:
                self._skippable_inputs.append(queue)
        return queue

    def _remote_output(self, edge: Edge, pair: ReplicaPair) -> RemoteOutput:
        peer = self._layout.site_of[edge.to.node, pair[2]]
        limits, wire = self._stream_limits(edge), self._wire_format(edge)
        sender = self._channels.open_sender(
            _stream_channel(edge, pair), peer, limits=limits, wire=wire
        )
        self._stream_senders.append(sender)
        producer = instance_key(edge.sources[pair[0]].node, pair[1])
        wait = self.waits.on_output(producer, pair_label(edge, pair), sender)
        if edge.when_full == "drop_oldest":
            capacity = self._checked.program.capacity[edge.to]
            return LossyRemoteOutput(self.waits, sender, wait, capacity)
        return RemoteOutput(self.waits, sender, wait)

    def _wire_format(self, edge: Edge) -> WireFormat:
        """Return what is done to the tokens of an edge between machines. Edges with the same options share it."""
        options = edge.compress, edge.dtype
        if options not in self._wire_formats:
            self._wire_formats[options] = wire_format(*options)
        return self._wire_formats[options]

    def _stream_limits(self, edge: Edge) -> ChannelLimits:
        """Return limits with room for some rounds of tokens, unless the graph sets the capacity."""
        capacity = self._checked.program.capacity[edge.to]
        tokens = capacity if edge.capacity else capacity * self._rounds_in_channel
        return ChannelLimits(tokens=tokens)

    # states

    def state_input(self, edge: Edge, replica: int, versions: Versions) -> Take:
        if edge.source in versions:
            return super().state_input(edge, replica, versions)
        return self._states.view(edge, replica)

    def round_end_readers(self, edge: Edge, versions: StateVersions) -> list[Push]:
        return self._states.round_end_readers(edge, versions)

    def paced_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        return self._states.paced_readers(edge, versions)

    def lagged_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        return self._states.lagged_readers(edge, versions)

    # firings

    def firing_readers(self, node: str) -> list[Push]:
        return self._firings.readers(node)

    def remote_firings(self, node: str) -> Callable[[], bool]:
        return self._firings.take_one(node)

    # links

    def client_stub(
        self, edge: Edge, replica: int, contexts: dict[Replica, Context], fresh: bool
    ) -> Any:
        if self.is_local(edge.source.node, replica):
            return None
        return self._services.client_stub(edge, replica, contexts, fresh)

    def save_remote_service(self, edge: Edge, path: ServicePath, replica: int) -> SavedState:
        return self._services.save_service(edge, path, replica)

    def load_remote_service(
        self, edge: Edge, path: ServicePath, replica: int, saved: SavedState
    ) -> None:
        self._services.load_service(edge, path, replica, saved)

    def serve_remote_clients(self, service: LocalService, contexts: dict[Replica, Context]) -> None:
        self._services.serve(service, contexts)

    # called by the site's scheduler

    def send_initial_versions(self) -> None:
        """Send the versions that the first round may read to their readers: version 0, unless a run continues.

        Called when the channels of all sites are open.
        """
        self._states.send_initial_versions()

    def continue_after(self, rounds: int) -> None:
        """Expect the versions of a run that continues after these rounds."""
        self._states.continue_after(rounds)

    @property
    def has_remote_firings(self) -> bool:
        """Whether there is a notification of a firing that paces nodes on this site."""
        return self._firings.have_arrived

    def wait_for_tokens(self, can_fire: Callable[[], bool]) -> None:
        """Wait until a token arrives that lets an instance of this site fire."""
        if self._token_wait is None:
            sites = self._layout.site_of.items()
            names = sorted({node for (node, _), site in sites if site == self.name})
            self._token_wait = self.waits.on_input(", ".join(names), "anything to fire with")
        receivers = [queue.receiver for queue in self._inputs]
        self.waits.until(can_fire, self._token_wait, *receivers)

    def _take_in_for_skipped_firings(self) -> None:
        """Make room for tokens that come after the firings in which they were to be consumed.

        A site passes over firings whose tokens have not arrived. If it then waits for slower sites, for a lease, or at
        the cut, those must not wait for room: the firings that would make it are over. The rounds by which sites may be
        ahead of each other limit the number of these tokens. A free site has no rounds: it fires when it has tokens.
        """
        fires_freely = self.is_free and self.site.rounds >= self._warm_up_rounds
        if fires_freely and not self.stands_still:
            return
        for queue in chain(self._skippable_inputs, self._states.skippable_inputs):
            queue.empty_receiver()

    def replace_peer(self, peer: str, address: str, epoch: int) -> int:
        """Connect to a peer that was started again. Return how many tokens to it were lost.

        Tokens of the lost site that have arrived stay. The new one gets the newest version of each state that it reads.
        """
        for queue in self._inputs:
            if queue.receiver.peer == peer:
                queue.empty_receiver()
        lost_before = self._lost_tokens(peer)
        self._channels.replace_peer(peer, address, epoch)
        self._states.send_newest_again(peer)
        return self._lost_tokens(peer) - lost_before

    def _lost_tokens(self, peer: str) -> int:
        return sum(sender.lost for sender in self._stream_senders if sender.peer == peer)

    def keep_inputs(self) -> None:
        """Take in all tokens from now on. The site has ended, and its producers must not wait for it.

        Producers on lossy edges never wait. They keep their tokens, and drop and count those that find no room.
        """
        self._channels.on_receive(self._keep)
        self._keep()

    def _keep(self) -> None:
        for queue in self._awaited_inputs:
            queue.empty_receiver()

    def sent_tokens(self) -> dict[str, int]:
        """Return how many tokens were sent on each stream to another site, by channel."""
        return {sender.name: sender.sent for sender in self._stream_senders}

    def have_arrived(self, sent: Mapping[str, int]) -> bool:
        """Return whether all tokens have arrived that were sent to this site."""
        receivers = (queue.receiver for queue in self._inputs)
        return all(receiver.arrived >= sent.get(receiver.name, 0) for receiver in receivers)

    def irregularity_lines(self) -> list[str]:
        """Return what made this run differ from a deterministic one, without dropped tokens."""
        return self._states.irregularity_lines()


def _stream_channel(edge: Edge, pair: ReplicaPair) -> str:
    return f"{edge.to}:{pair[0]}.{pair[1]}.{pair[2]}"
