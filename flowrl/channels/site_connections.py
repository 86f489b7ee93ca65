"""The connections of one site to its peers, over whichever transports their addresses name.

A site can have several addresses at once: `inproc://name` for threads of its process, `ipc://path` for processes of
its machine, `tcp://host:port` for other machines. Each peer uses one of them. A message that arrives over another
transport than its sender's is refused.
"""

from __future__ import annotations

import select
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from flowrl.channels.absent_peer import AbsentPeer
from flowrl.channels.inproc import SCHEME, Inbox, InboxRegistry
from flowrl.channels.messages import OUT_OF_BAND
from flowrl.channels.refusals import RefusalCounts
from flowrl.channels.transport import (
    TRANSPORTS,
    Connection,
    Received,
    SiteSettings,
    SiteTraffic,
    Transport,
    scheme_of,
)

if TYPE_CHECKING:
    from flowrl.channels.keys import Keys


class SiteConnections:
    """All connections of one site, and its inbox; owned by one thread, whose only wait is `poll`."""

    def __init__(
        self,
        site: str,
        run: bytes = b"",
        inboxes: InboxRegistry | None = None,
        *,
        keys: Keys | None = None,
        max_token_bytes: int = 1 << 30,
        shared_bytes: int = 256 << 20,
        epoch: int = 0,
    ) -> None:
        """`run` is the run's secret, a part of every message. `shared_bytes` limits shared memory for each peer.

        `epoch` is how often the site was started again.
        """
        self.site, self.epoch = site, epoch
        self._epochs: dict[str, int] = {}  # of the peers
        self.connections: dict[str, Connection[Any]] = {}
        self._inbox = Inbox()
        self._inboxes = {} if inboxes is None else inboxes
        self._inboxes[site] = self._inbox
        self._refused: Counter[tuple[str, str]] = Counter()
        self._settings = SiteSettings(
            site, run, keys, max_token_bytes, shared_bytes, self.count_refusal, self._inboxes, epoch
        )
        self._transports: dict[str, Transport] = {}  # by scheme
        self._transport_of: dict[str, Transport] = {}  # by peer
        self._readers: dict[Any, Callable[[], Received]] = {}
        self._extra_fds: list[int] = []
        self._poller: Any = select.poll()
        self._poller.register(self._inbox.wake_fd, select.POLLIN)

    @property
    def inproc_address(self) -> str:
        """The address of the site for threads of this process."""
        return SCHEME + self.site

    def _transport(self, address: str) -> Transport:
        """Return the transport of an address, which is made when it is first needed."""
        scheme = scheme_of(address)
        if scheme not in self._transports:
            self._transports[scheme] = TRANSPORTS[scheme].load()(self._settings)
        return self._transports[scheme]

    def listen(self, address: str, listening_fd: int | None = None) -> str:
        """Listen at this address, too. Return the address for peers, in which a free port replaces the port `*`.

        `listening_fd` is the descriptor of a socket that already listens at this address.
        """
        transport = self._transport(address)
        bound = transport.listen(address, listening_fd)
        self._register(transport)
        return bound

    def _register(self, transport: Transport) -> None:
        readers = transport.readers()
        if readers and not self._readers:  # ZeroMQ's sockets need ZeroMQ's poller
            import zmq

            self._poller = zmq.Poller()
            for fd in (self._inbox.wake_fd, *self._extra_fds):
                self._poller.register(fd, select.POLLIN)
        for readable, read in readers.items():
            if readable not in self._readers:
                self._poller.register(readable, select.POLLIN)
                self._readers[readable] = read

    def connect(self, peer: str, address: str, epoch: int = 0) -> Connection[Any]:
        """Connect to a peer, and accept its messages of this epoch from now on."""
        if peer in self.connections:
            self.disconnect(peer)
        transport = self._transport_of[peer] = self._transport(address)
        connection = self.connections[peer] = transport.connect(peer, address, epoch)
        self._epochs[peer] = epoch
        return connection

    def await_peer(self, peer: str) -> None:
        """Have a connection to a peer that is not there yet, which drops what is sent. `connect` replaces it."""
        self.connections[peer], self._epochs[peer] = AbsentPeer(), 0

    def epoch_with(self, peer: str) -> int:
        """Return the epoch of all channels with a peer, which grows whenever one of both sites is started again."""
        return self.epoch + self._epochs[peer]

    def disconnect(self, peer: str) -> None:
        """Drop the frames that were not sent to a peer yet, and accept no more of its messages."""
        self.connections.pop(peer).close(drop=True)
        transport = self._transport_of.pop(peer, None)
        if transport is not None:  # otherwise the peer has never been there
            transport.disconnect(peer)

    def send_out_of_band(self, peer: str, text: str) -> None:
        """Send a text that belongs to no channel."""
        self.connections[peer].send_frame(OUT_OF_BAND, text)

    def flush(self) -> None:
        """Send all gathered frames."""
        for connection in self.connections.values():
            connection.flush()

    def flush_credits(self) -> None:
        """Send all gathered frames and all deferred credits."""
        for connection in self.connections.values():
            connection.flush_credits()

    def poll(self, timeout_s: float = 0.0) -> Received:
        """Return frames that have arrived; if there are none, wait for some."""
        timeout_ms = 0
        if timeout_s > 0 and self._inbox.prepare_to_sleep():
            timeout_ms = int(timeout_s * 1000) + 1
        ready = self._poller.poll(timeout_ms) if self._readers or timeout_ms else []
        received = self._inbox.take_all()
        if ready and self._readers:
            for readable, _ in ready:
                read = self._readers.get(readable)
                if read is not None:
                    received += read()
        return received

    @contextmanager
    def wake_on(self, fds: Collection[int]) -> Iterator[None]:
        """Within the context, have `poll` return also when one of these descriptors becomes readable."""
        self._extra_fds = [*fds]
        for fd in fds:
            self._poller.register(fd, select.POLLIN)
        try:
            yield
        finally:
            self._extra_fds = []
            for fd in fds:
                self._poller.unregister(fd)

    def count_refusal(self, reason: str, peer: str, times: int = 1) -> None:
        self._refused[reason, peer] += times

    def refusal_lines(self) -> list[str]:
        """Return what this site has refused, in words, for the summary of the run."""
        counts = RefusalCounts()
        for (reason, peer), times in self.traffic().refused.items():
            counts.add(reason if peer == "?" else f"{reason}, from site '{peer}'", times)
        return counts.lines(f"by site '{self.site}'")

    def close(self, drop: bool = False) -> None:
        """Close all connections. Frames may take a second to leave, unless `drop` discards them."""
        if self._inboxes.get(self.site) is self._inbox:
            del self._inboxes[self.site]
        for connection in self.connections.values():
            connection.close(drop)
        for transport in self._transports.values():
            transport.close()
        self._inbox.close()

    def traffic(self) -> SiteTraffic:
        """Return the traffic so far."""
        sent = [connection.traffic() for connection in self.connections.values()]
        return SiteTraffic(
            bytes_sent=sum(traffic.bytes for traffic in sent),
            shared_tokens=sum(traffic.shared_tokens for traffic in sent),
            shared_bytes=sum(traffic.shared_bytes for traffic in sent),
            not_shared=sum(traffic.not_shared for traffic in sent),
            lost_connections=sum(t.lost_connections() for t in self._transports.values()),
            refused=dict(self._refused),
        )
