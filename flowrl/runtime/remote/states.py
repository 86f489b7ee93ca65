"""States between sites: a site sends versions of its states, reads those of other sites, and may be a relay.

`state_channels` says by which channels versions go from site to site.
"""

from __future__ import annotations

from collections.abc import Callable

from flowrl.channels import Receiver, Sender
from flowrl.channels.wire_format import WireFormat
from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import lags_behind_firings
from flowrl.checks.lossy_edges import nodes_that_may_skip_firings
from flowrl.core.context import instance_key
from flowrl.core.state import EMPTY_CLOCK, State
from flowrl.graph.model import Edge, PortRef
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.half_precision import EdgeRounding
from flowrl.runtime.lagged_versions import lagged_versions
from flowrl.runtime.remote.edges import LossyRemoteOutput, RemoteInput, RemoteOutput
from flowrl.runtime.remote.state_channels import StateChannel, StateChannels
from flowrl.runtime.remote.state_relay import NewestStateRelay, StateRelay
from flowrl.runtime.remote.state_views import LaggedView, NewestView, PacedView, RoundEndView
from flowrl.runtime.remote.version_pieces import VersionInput, push_in_pieces
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.site_state import SiteState
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import Push, Take, Token


class RemoteStates:
    """The states that a site sends to other sites, reads from them, or passes on."""

    def __init__(
        self,
        checked: CheckedGraph,
        layout: SiteLayout,
        name: str,
        waits: SiteWaits,
        site: SiteState,
        free_sites: frozenset[str],
        rounding: Callable[[Edge], EdgeRounding | None],
        wire_format: Callable[[Edge], WireFormat],
    ) -> None:
        """`rounding` and `wire_format` return what the options of an edge do to the versions on it."""
        self._program, self._name = checked.program, name
        self._waits, self._site = waits, site
        self._rounding, self._wire_format = rounding, wire_format
        self._state_channels = StateChannels(checked.graph, layout, free_sites)
        self._views: dict[tuple[PortRef, int], Take] = {}  # by input and replica
        self._newest_views: list[NewestView] = []
        self._round_end_views: list[RoundEndView] = []
        self._send_initial: list[Callable[[], None]] = []
        self._newest_outputs: list[tuple[str, LossyRemoteOutput]] = []  # with the reader's site
        self._may_skip = nodes_that_may_skip_firings(checked.program)
        self.skippable_inputs: list[
            RemoteInput
        ] = []  # by which nodes are paced that may skip firings
        edges = [edge for edge in checked.graph.edges if name in layout.relays_of(edge)]
        self._relays = [self._relay(edge) for edge in edges]

    # reading

    def view(self, edge: Edge, replica: int) -> Take:
        """Return the function by which a consumer on this site takes the version of a state elsewhere."""
        key = edge.to, replica
        if key not in self._views:  # each phase of the warm-up connects the instances again
            self._views[key] = self._make_view(edge, replica)
        return self._views[key]

    def _make_view(self, edge: Edge, replica: int) -> Take:
        channel = self._state_channels.to_reader(edge, replica)
        receiver = self._open_receiver(edge, channel)
        consumer = instance_key(edge.to.node, replica)
        wait = self._waits.on_input(consumer, channel.label, receiver)
        kind = VersionInput if channel.in_pieces else RemoteInput
        queue = kind(self._waits, receiver, wait)
        if edge.every is not None:
            if edge.to.node in self._may_skip:
                self.skippable_inputs.append(queue)
            return PacedView(self._site, queue).take
        if channel.carries_newest:
            view = NewestView(self._waits, queue)
            self._newest_views.append(view)
            return view.take
        if lags_behind_firings(self._program, edge):
            versions = lagged_versions(self._program, self._site, edge.source.node, edge.lag)
            return LaggedView(self._waits, queue, versions, edge.lag).take
        round_end_view = RoundEndView(self._waits, self._site, queue, edge.lag)
        self._round_end_views.append(round_end_view)
        return round_end_view.take

    def continue_after(self, rounds: int) -> None:
        """Expect the versions of a run that continues after these rounds."""
        for view in self._round_end_views:
            view.continue_after(rounds)

    def irregularity_lines(self) -> list[str]:
        """Return how far the newest versions were apart that firings have read."""
        return [line for view in self._newest_views if (line := view.irregularity()) is not None]

    # sending

    def round_end_readers(self, edge: Edge, versions: StateVersions) -> list[Push]:
        """Return for each reader elsewhere the function that sends it the version with which a round ended."""
        return [self._round_end_reader(edge, channel, versions) for channel in self._sent(edge)]

    def _round_end_reader(self, edge: Edge, channel: StateChannel, versions: StateVersions) -> Push:
        send = self._push(edge, channel)
        last: State | None = None

        def push(token: Token) -> None:
            nonlocal last
            state = token[0]
            if state is not last:
                send((state, EMPTY_CLOCK))
            elif not channel.carries_newest:
                send((None, EMPTY_CLOCK))  # no new version in this round
            last = state

        def send_initial() -> None:
            ends = versions.of_later_rounds[-1 - min(edge.lag, self._site.rounds) :]
            for state in ends or [versions.newest()]:
                push((state, EMPTY_CLOCK))

        self._send_initial.append(send_initial)
        return push

    def paced_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        """Return for each reader elsewhere the function that sends it the version that paces it."""
        return [self._paced_reader(edge, channel, versions) for channel in self._sent(edge)]

    def _paced_reader(
        self, edge: Edge, channel: StateChannel, versions: StateVersions
    ) -> Callable[[], None]:
        send = self._push(edge, channel)
        return lambda: send((versions.newest_whole(), EMPTY_CLOCK))

    def lagged_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        """Return for each reader elsewhere the function that sends it the version of a firing."""
        return [self._lagged_reader(edge, channel, versions) for channel in self._sent(edge)]

    def _lagged_reader(
        self, edge: Edge, channel: StateChannel, versions: StateVersions
    ) -> Callable[[], None]:
        send = self._push(edge, channel)

        def send_initial() -> None:
            for state in versions.of_later_rounds[-1 - edge.lag :]:
                send((state, EMPTY_CLOCK))

        self._send_initial.append(send_initial)
        return lambda: send((versions.newest(), EMPTY_CLOCK))

    def send_initial_versions(self) -> None:
        """Send the versions that the first round may read: version 0, unless a run continues.

        Called when the channels of all sites are open.
        """
        for relay in self._relays:
            relay.begin()
        for send in self._send_initial:
            send()

    def send_newest_again(self, peer: str) -> None:
        """Send the newest versions to a site that was started again, which has none."""
        for reader, output in self._newest_outputs:
            if reader == peer:
                output.send_last_again()

    def _sent(self, edge: Edge) -> list[StateChannel]:
        return self._state_channels.sent_by(self._name, edge)

    def _push(self, edge: Edge, channel: StateChannel) -> Push:
        """Return the function that sends a version, or None, to a reader on another site or to a relay."""
        push: Push = self._output(edge, channel).append
        if channel.in_pieces:
            push = push_in_pieces(push)
        rounding = self._rounding(edge)
        return push if rounding is None else rounding.rounded_state_push(push)

    def _output(self, edge: Edge, channel: StateChannel) -> RemoteOutput:
        sender = self._open_sender(edge, channel)
        wait = self._waits.on_output(edge.source.node, channel.label, sender)
        if channel.carries_newest:
            newest_output = LossyRemoteOutput(self._waits, sender, wait, capacity=1)
            self._newest_outputs.append((channel.taker, newest_output))
            return newest_output
        return RemoteOutput(self._waits, sender, wait)

    def _relay(self, edge: Edge) -> StateRelay:
        """Open the channels by which this site, a relay, takes and sends versions."""
        taken, sent = self._state_channels.to_relay(edge, self._name), self._sent(edge)
        receiver = self._open_receiver(edge, taken)
        self._waits.on_input("", taken.label, receiver)
        senders = [self._open_sender(edge, channel) for channel in sent]
        for channel, sender in zip(sent, senders, strict=True):
            self._waits.on_output("", channel.label, sender)
        kind = NewestStateRelay if taken.carries_newest else StateRelay
        return kind(self._waits.channels, receiver, senders)

    def _open_sender(self, edge: Edge, channel: StateChannel) -> Sender:
        channels, wire = self._waits.channels, self._wire_format(edge)
        return channels.open_sender(channel.name, channel.taker, channel.limits, wire)

    def _open_receiver(self, edge: Edge, channel: StateChannel) -> Receiver:
        channels, wire = self._waits.channels, self._wire_format(edge)
        return channels.open_receiver(channel.name, channel.sender, channel.limits, wire)
