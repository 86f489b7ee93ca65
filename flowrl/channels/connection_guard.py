"""Watches the connections that a listening TCP socket accepts, in a thread of its own.

ZeroMQ accepts every connection and buffers what it sends, whatever the site is doing. So anybody who reaches the port
could use up the descriptors and the memory of the site. The guard closes what exceeds the `ConnectionLimits`, and
counts it by reason. It also authenticates peers, so they can connect to a site while that fires.

The kernel says how many bytes each connection has carried (`TCP_INFO` of Linux). A peer that is not authenticated is
sent only the first part of the handshake, so its count shows whether it is. On other systems only the number of
connections is limited.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import zmq

from flowrl.channels.authenticator import Authenticator

ACCEPTED = int(zmq.EVENT_ACCEPTED)
ACCEPT_FAILED = int(zmq.EVENT_ACCEPT_FAILED)
DISCONNECTED = int(zmq.EVENT_DISCONNECTED)
MONITOR_STOPPED = int(zmq.EVENT_MONITOR_STOPPED)
HANDSHAKE_ABORTED = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)  # the other side hung up
HANDSHAKE_REFUSED = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
HANDSHAKE_FAILED = HANDSHAKE_ABORTED | HANDSHAKE_REFUSED
GUARDED_EVENTS = ACCEPTED | ACCEPT_FAILED | DISCONNECTED | HANDSHAKE_FAILED | MONITOR_STOPPED

PERIOD_S = 0.2  # between checks of the connections, while there are any
MIN_PERIOD_S = 0.02  # between such checks while there are too many
MAX_EVENTS = 64  # that are handled before the peers that wait for it are authenticated
HANDSHAKE_MS = 5000  # in which ZeroMQ closes a connection that has not authenticated
MAX_UNKNOWN = 32  # connections that have not authenticated, unless more peers are expected
# In which a peer may authenticate before it makes room for a newer one. If the oldest were closed at once, none of many
# peers that connect at the same time would get through its handshake.
MIN_HANDSHAKE_S = 1.0
# Once a peer is authenticated, it has been sent more than these bytes, and no other peer has (ZMTP 3.1, RFC 37):
GREETING_BYTES = 64  # without keys: the greeting
CURVE_BYTES = 256  # with keys: the greeting, WELCOME (170 bytes) and perhaps ERROR; READY is longer

TCP_INFO: int | None = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None
CARRIED_BYTES = struct.Struct("=120xQQ")  # in TCP_INFO: tcpi_bytes_acked, tcpi_bytes_received

NO_DESCRIPTOR = "no file descriptor left"
TOO_MANY = "too many connections"
ENDLESS = "endless message"
HANDSHAKE = "handshake"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What the peers of one listening socket may use."""

    connections: int  # besides those that have not authenticated
    unread_bytes: int  # sent by one connection after its last message that was read
    peers: int = 0  # that are expected, and may all connect at the same time

    @property
    def unknown(self) -> int:
        """How many connections may be without authentication."""
        return max(MAX_UNKNOWN, self.peers)


@dataclass(slots=True)
class AcceptedConnection:
    is_known: bool = TCP_INFO is None  # authenticated, or it cannot be found out
    is_closing: bool = False  # the guard has closed it, and ZeroMQ will notice
    accepted_s: float = field(default_factory=time.monotonic)
    has_been_read: bool = (
        False  # a message was read since the last check; set by the socket's thread
    )
    read_bytes: int = 0  # received by the check after that


class ConnectionGuard:
    """The guard of one listening socket. Its methods are for the thread that owns the socket."""

    def __init__(
        self,
        monitor: zmq.Socket[bytes],
        port: int,
        limits: ConnectionLimits,
        known_from_bytes: int,
        authenticator: Authenticator | None = None,
    ) -> None:
        """`monitor` reports `GUARDED_EVENTS`; the guard ends when it is disabled. The guard closes what it is given.

        A peer that has been sent more than `known_from_bytes` is authenticated.
        """
        self._monitor, self._port, self._limits = monitor, port, limits
        self._known_from_bytes, self._authenticator = known_from_bytes, authenticator
        self._connections: dict[int, AcceptedConnection] = {}  # by descriptor, the oldest first
        self._lock = threading.Lock()
        self._refused: Counter[str] = Counter()
        self._lost_connections = 0
        self._handshake_has_failed = False  # of the connection that ZeroMQ reports as closed next
        self._checked_s = 0.0  # when the connections were checked last
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
        self._thread.start()

    def on_message(self, fd: int) -> None:
        """Note that a whole message of this connection was read."""
        connection = self._connections.get(fd)
        if connection is not None:
            connection.has_been_read = True

    def take_counts(self) -> tuple[Counter[str], int]:
        """Return what was refused since the last call, by reason, and how many connections were lost."""
        with self._lock:
            counts = self._refused, self._lost_connections
            self._refused, self._lost_connections = Counter(), 0
        return counts

    def join(self) -> None:
        """Wait until the guard has ended."""
        self._thread.join()

    # in the guard's thread

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._monitor, zmq.POLLIN)
        if self._authenticator is not None:
            poller.register(self._authenticator.socket, zmq.POLLIN)
        try:
            while self._handle_events():
                if self._authenticator is not None:
                    self._authenticator.answer_requests()
                self._check_connections_again(PERIOD_S)
                poller.poll(int(PERIOD_S * 1000) if self._connections else None)
        finally:
            self._monitor.close()
            if self._authenticator is not None:
                self._authenticator.close()

    def _handle_events(self) -> bool:
        """Handle some of what has happened; return False once the monitor is disabled."""
        for _ in range(MAX_EVENTS):
            if not self._monitor.poll(0):
                break
            event, value = struct.unpack("=HI", self._monitor.recv_multipart()[0])
            if event == MONITOR_STOPPED:
                return False
            if event == ACCEPTED:
                self._on_accepted(value)
            elif event == ACCEPT_FAILED and value in (errno.EMFILE, errno.ENFILE):
                self._count(f"{NO_DESCRIPTOR} at port {self._port}")
            elif event == DISCONNECTED:
                self._on_disconnected(value)
            elif event & HANDSHAKE_FAILED:
                self._handshake_has_failed = True
        return True

    def _on_accepted(self, fd: int) -> None:
        self._connections.pop(fd, None)
        self._connections[fd] = AcceptedConnection()
        open_connections = sum(not c.is_closing for c in self._connections.values())
        if open_connections > self._limits.connections + self._limits.unknown:
            self._refuse(fd, TOO_MANY)
        elif self._unknown() > self._limits.unknown:
            self._check_connections_again()  # some may be authenticated by now
            self._make_room(fd)

    def _on_disconnected(self, fd: int) -> None:
        """Forget a connection, and count it if it has not authenticated. Those that the guard closed are counted."""
        connection = self._connections.pop(fd, AcceptedConnection())
        # the connection may have ended before it was checked; only messages of authenticated peers are read
        is_known = connection.is_known or connection.has_been_read
        if (self._handshake_has_failed or not is_known) and not connection.is_closing:
            self._count(HANDSHAKE)
        self._handshake_has_failed = False
        with self._lock:
            self._lost_connections += 1

    def _unknown(self) -> int:
        """Return how many open connections have not authenticated."""
        return sum(not (c.is_known or c.is_closing) for c in self._connections.values())

    def _check_connections_again(self, period_s: float = MIN_PERIOD_S) -> None:
        """Check the connections unless it was done just now, because many peers connect one after another."""
        if time.monotonic() - self._checked_s >= period_s:
            self._check_connections()
            self._checked_s = time.monotonic()

    def _check_connections(self) -> None:
        """Find out which connections have authenticated, and close those with too many unread bytes."""
        for fd, connection in self._connections.items():
            self._check(fd, connection)

    def _check(self, fd: int, connection: AcceptedConnection) -> None:
        carried = None if connection.is_closing else self._carried_bytes(fd)
        if carried is None:
            return
        sent, received = carried
        if sent > self._known_from_bytes:
            connection.is_known = True
        if connection.has_been_read:
            connection.has_been_read, connection.read_bytes = False, received
        if received - connection.read_bytes > self._limits.unread_bytes:
            self._refuse(fd, ENDLESS)

    def _carried_bytes(self, fd: int) -> tuple[int, int] | None:
        """Return how many bytes a connection has sent and received, or None if that is not known."""

        def read_counts(connection: socket.socket) -> tuple[int, int]:
            assert TCP_INFO is not None
            info = connection.getsockopt(socket.IPPROTO_TCP, TCP_INFO, CARRIED_BYTES.size)
            sent, received = CARRIED_BYTES.unpack(info)
            return sent, received

        return None if TCP_INFO is None else self._use(fd, read_counts)

    def _make_room(self, newest: int) -> None:
        """While too many have not authenticated, close the oldest of them, or the newest one if the oldest is young."""
        while self._unknown() > self._limits.unknown:
            fd, oldest = next(
                (f, c) for f, c in self._connections.items() if not (c.is_known or c.is_closing)
            )
            self._check(fd, oldest)
            if oldest.is_known or oldest.is_closing:
                continue  # it has authenticated since the last check of all
            is_young = time.monotonic() - oldest.accepted_s < MIN_HANDSHAKE_S
            self._refuse(newest if is_young else fd, TOO_MANY)
            return

    def _refuse(self, fd: int, reason: str) -> None:
        self._count(reason)
        self._close(fd)

    def _close(self, fd: int) -> None:
        """Shut a connection down. ZeroMQ, which owns the descriptor, notices it and closes the descriptor."""
        self._connections[fd].is_closing = True
        self._use(fd, lambda connection: connection.shutdown(socket.SHUT_RDWR))

    def _use(self, fd: int, use: Callable[[socket.socket], T]) -> T | None:
        """Use the connection of a descriptor. Return None if ZeroMQ has closed it, or it means another file by now."""
        try:
            connection = socket.socket(fileno=fd)
        except OSError:
            return None
        try:
            is_own = connection.getsockname()[1:2] == (self._port,)
            return use(connection) if is_own else None
        except OSError:
            return None
        finally:
            connection.detach()

    def _count(self, reason: str) -> None:
        with self._lock:
            self._refused[reason] += 1
