"""One run on a host, from joining it to its end: what the run requests, and what the host reports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

import zmq

from flowrl.channels.connection_guard import (
    DISCONNECTED,
    HANDSHAKE_ABORTED,
    HANDSHAKE_FAILED,
    HANDSHAKE_REFUSED,
)
from flowrl.channels.errors import RefusedMessage
from flowrl.channels.zmq_sockets import HANDSHAKE_SUCCEEDED, NOBLOCK, ZmqSockets
from flowrl.cluster.compatibility import machine_facts
from flowrl.cluster.control_socket import control_options
from flowrl.cluster.hosted_sites import HostedSites
from flowrl.cluster.join_file import JoinInfo
from flowrl.cluster.messages import (
    CLOSE_S,
    HEARTBEAT_S,
    PROTOCOL,
    SESSION_BYTES,
    Disturb,
    EndSites,
    FilePiece,
    Heartbeat,
    HostDropped,
    HostLeft,
    HostMessage,
    Join,
    JoinRefused,
    ListenFor,
    RequestFailed,
    RunEnded,
    RunMessage,
    SiteEnded,
    SiteOutput,
    SitePorts,
    SitesEnded,
    StartSites,
    Welcome,
    host_session,
)
from flowrl.cluster.site_output import SiteOutputForwarder
from flowrl.core.errors import FlowError, UsageError
from flowrl.graph.host_offers import HostOffer
from flowrl.machine.network_address import (
    Address,
    is_connectable,
    local_address_towards,
    machine_id,
    parse_address,
    resolve_machine,
)
from flowrl.machine.resources import machine_resources
from flowrl.runtime.disturbances import Disturbance

POLL_S = 0.2
LINGER_MS = 1000  # in which the last messages may leave
# One aborted handshake may come from a run that is just ending; several mean that the keys differ.
MAX_ABORTED_HANDSHAKES = 3


class RunLost(FlowError):
    """The run did not come, or is gone."""


class RunRefused(RunLost):
    """The run does not let this host take part, and never will."""


class HostSession:
    """One run on this host, from joining it to its end; owned by one thread."""

    def __init__(
        self, offer: HostOffer, address: str | None, info: JoinInfo, show: Callable[[str], None]
    ) -> None:
        """Other machines reach this one at `address`; by default, at its address towards the run."""
        run_address = parse_address(info.address, "--join")
        self._offer, self._run_address, self._show = offer, run_address, show
        self._identity, self._has_key = info.identity, info.keys is not None
        show(f"host '{offer.name}': waiting for a run at {run_address}")
        self._machine = _machine_address(address, run_address)
        self._graph = ""  # the name of the run's graph, once this host has joined
        self._how_ended: str | None = None
        self._aborted_handshakes = 0
        self._heartbeat_s = 0.0
        self._sites: HostedSites | None = None
        self._output = SiteOutputForwarder(lambda text: self._send(SiteOutput(text)))
        self._session = host_session(os.urandom(SESSION_BYTES))
        keys = info.keys
        self._sockets = ZmqSockets()
        self._socket = self._sockets.connect(
            zmq.DEALER,
            str(run_address),
            keys=keys,
            server_key=keys.public if keys else b"",
            watched=DISCONNECTED | HANDSHAKE_SUCCEEDED | HANDSHAKE_FAILED,
            **control_options(run_address),
        )
        self._poller = zmq.Poller()
        for socket in (self._socket, *self._sockets.monitors):
            self._poller.register(socket, zmq.POLLIN)

    @property
    def has_joined(self) -> bool:
        return bool(self._graph)

    def serve(self, deadline: float | None) -> None:
        """Wait for the run until the deadline, join it, and do what it requests until it has ended."""
        began = time.monotonic()
        while self._how_ended is None:
            self._poller.poll(int(POLL_S * 1000))
            for event in self._sockets.pending_events():
                self._handle_event(event)
            self._receive()
            if self._graph:
                self._report()
            elif deadline is not None and time.monotonic() > deadline:
                waited_s = round(deadline - began, 1)
                raise RunLost(f"{self._run_address}: no run was there within {waited_s:g} s")
        self._show(f"the run {self._graph} is over: {self._how_ended}")

    def _handle_event(self, event: int) -> None:
        """Join when a connection is made; raise `RunLost` when it is lost or refused."""
        if event == HANDSHAKE_SUCCEEDED and not self._graph:
            self._session = host_session(os.urandom(SESSION_BYTES))
            self._send(self._join_message())
        elif event == DISCONNECTED and self._graph:
            raise RunLost(
                f"the run {self._graph} is gone: the connection to {self._run_address} broke off"
            )
        elif event == HANDSHAKE_ABORTED:
            self._aborted_handshakes += 1
        if event & HANDSHAKE_REFUSED or self._aborted_handshakes >= MAX_ABORTED_HANDSHAKES:
            why = "the run has another key, or none"
            if not self._has_key:
                why = "the run requires a key; give it with --key FILE, or with the run's join file"
            raise RunRefused(f"{self._run_address}: {why}")

    def _join_message(self) -> Join:
        return Join(
            protocol=PROTOCOL,
            name=self._offer.name,
            labels=self._offer.labels,
            address=self._machine,
            joined=str(self._run_address),
            resources=machine_resources(),
            machine_id=machine_id(),
            machine=machine_facts(),
            run=self._identity.run if self._identity else "",
            epoch=self._identity.epoch if self._identity else -1,
        )

    def _send(self, message: HostMessage) -> None:
        with suppress(zmq.Again):  # the connection is gone, which an event reports
            self._socket.send(self._session.pack(message), NOBLOCK)

    # what the run requests

    def _receive(self) -> None:
        while self._how_ended is None:
            try:
                message = self._session.read(self._socket.recv(NOBLOCK))
            except zmq.Again:
                return
            except RefusedMessage as error:
                self._show(f"refused: a message from {self._run_address}: {error.reason}")
                continue
            self._handle(message)

    def _handle(self, message: RunMessage) -> None:
        if isinstance(message, Welcome):
            self._graph = message.graph
            self._show(f"joined the run {self._graph} as '{message.name}'")
        elif isinstance(message, JoinRefused):
            raise RunRefused(f"the run at {self._run_address} refuses this host: {message.why}")
        elif isinstance(message, HostDropped):
            raise RunLost(f"the run {self._graph} has dropped this host: {message.why}")
        elif isinstance(message, RunEnded):
            self._how_ended = message.how
        elif self._graph and not isinstance(message, Heartbeat):
            self._execute(message)

    def _execute(self, request: ListenFor | FilePiece | StartSites | EndSites | Disturb) -> None:
        """Do what the run requests. If that fails, notify the run and leave it."""
        if isinstance(request, Disturb):
            self._disturb(request.disturbance)
            return
        if isinstance(request, EndSites):
            self._end_sites(CLOSE_S)
            self._send(SitesEnded())
            return
        if self._sites is None:
            self._sites = HostedSites(self._machine)
            self._poller.register(self._sites.output_fd, zmq.POLLIN)
        try:
            if isinstance(request, ListenFor):
                self._send(SitePorts(self._sites.open_listeners(request.sites)))
            elif isinstance(request, FilePiece):
                self._sites.write_file_piece(request.path, request.content)
            else:
                self._sites.start(dict(request.config), dict(request.sites))
                self._show(f"at work: {', '.join(request.sites)}")
        except (FlowError, OSError, LookupError, TypeError, AttributeError) as error:
            what = f"{type(request).__name__} failed: {type(error).__name__}: {error}"
            self._send(RequestFailed(what))
            raise RunLost(what) from error

    def _disturb(self, disturbance: Disturbance) -> None:
        self._show(f"disturbed on purpose: {disturbance}")
        if self._sites is not None:
            self._sites.disturb(disturbance)

    # reports

    def _report(self) -> None:
        """Send what is due: a heartbeat, which sites have ended, and what sites have printed."""
        now = time.monotonic()
        if now - self._heartbeat_s >= HEARTBEAT_S:
            self._heartbeat_s = now
            self._send(Heartbeat())
        if self._sites is not None:
            for site, why in self._sites.newly_ended():
                self._output.forward(self._sites.read_output(), ends_line=True)
                self._send(SiteEnded(site, why))
            self._output.forward(self._sites.read_output())

    def _end_sites(self, within_s: float) -> None:
        """End the run's sites; after this time kill them."""
        sites, self._sites = self._sites, None
        if sites is not None:
            self._poller.unregister(sites.output_fd)
            sites.close(within_s)

    def close(self) -> None:
        """End the run's sites, notify the run, and close the connection."""
        # If the run is lost, its coordinator has not ended the sites.
        self._end_sites(0.0 if self._how_ended is None else CLOSE_S)
        if self._graph:
            self._send(HostLeft("it has left"))
        self._sockets.close(LINGER_MS)


def _machine_address(given: str | None, run_address: Address) -> str:
    """The address at which other machines reach this one."""
    if given is None:
        return local_address_towards(run_address)
    machine = resolve_machine(given, f"--address {given}")
    if not is_connectable(machine):
        raise UsageError(f"--address {given}: others cannot connect to this address")
    return machine
