"""ZeroMQ sockets with CURVE authentication, monitors and guards.

All ZeroMQ sockets of flowrl are made by `ZmqSockets`: those of channels between processes and machines, and those of
the control connections between a run and its hosts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import zmq

from flowrl.channels.authenticator import Authenticator
from flowrl.channels.connection_guard import (
    CURVE_BYTES,
    GREETING_BYTES,
    GUARDED_EVENTS,
    HANDSHAKE_MS,
    ConnectionGuard,
    ConnectionLimits,
)
from flowrl.channels.keys import Keys
from flowrl.core.errors import UsageError
from flowrl.machine.resource_limits import raise_open_file_limit

Socket = zmq.Socket[bytes]

NOBLOCK, SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)  # arithmetic on the enumeration is slow
READABLE = int(zmq.POLLIN)
ZAP_DOMAIN = b"flowrl"
# The sockets of one thread, which has one for each peer. ZeroMQ allows 1023 otherwise.
MAX_SOCKETS = 1 << 14
MIN_BACKLOG = 128  # connections that wait to be accepted
HANDSHAKE_SUCCEEDED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)


class ZmqSockets:
    """The sockets of one thread, in a ZeroMQ context of their own."""

    def __init__(self) -> None:
        self.listening: list[Socket] = []
        self.monitors: list[Socket] = []
        self.guards: dict[Socket, ConnectionGuard] = {}
        self._authenticator: Authenticator | None = None
        self._context: zmq.Context[Socket] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
        self._monitored: list[Socket] = []

    def listen(
        self,
        kind: int,
        address: str,
        *,
        limits: ConnectionLimits | None = None,
        keys: Keys | None = None,
        clients: Mapping[str, bytes] | None = None,
        watched: int = 0,
        listening_fd: int | None = None,
        where: str = "",
        **options: Any,
    ) -> tuple[Socket, str]:
        """Return a socket that listens at this address, and the address that clients connect to.

        With `limits`, which every TCP socket needs, the connections are guarded. With `keys`, which need `limits`, only
        `clients` (name and public key) are admitted. Without `limits`, `watched` selects monitored events.
        `listening_fd` is a descriptor that listens already, `where` begins an error, and `options` are socket options.
        """
        if limits is not None:
            _allow_connections(limits.connections + limits.unknown, f"{where}{address}")
            options["handshake_ivl"] = HANDSHAKE_MS
            options["backlog"] = max(MIN_BACKLOG, limits.peers)
        socket = self._new_socket(kind, options, watched)
        self.listening.append(socket)
        if listening_fd is not None:
            socket.setsockopt(zmq.USE_FD, listening_fd)
        authenticator = None
        if keys is not None:
            authenticator = self._admit(clients or {})
            socket.curve_server = True
            socket.curve_secretkey = keys.secret
            # Without an authenticator ZeroMQ would admit everybody, unless a domain is enforced.
            socket.zap_domain = ZAP_DOMAIN
            socket.zap_enforce_domain = True
        guarded = socket.get_monitor_socket(GUARDED_EVENTS) if limits is not None else None
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            if guarded is not None:
                socket.disable_monitor()
                guarded.close()
            raise UsageError(f"{where}{address}: cannot listen: {error}") from None
        endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        bound = endpoint.rstrip(b"\0").decode()
        if limits is not None and guarded is not None:
            port = int(bound.rpartition(":")[2])
            known_from_bytes = CURVE_BYTES if keys else GREETING_BYTES
            self.guards[socket] = ConnectionGuard(
                guarded, port, limits, known_from_bytes, authenticator
            )
        return socket, bound

    def _admit(self, clients: Mapping[str, bytes]) -> Authenticator | None:
        """Admit these clients. Return the authenticator of the context if it is new, so that it needs a thread."""
        is_new = self._authenticator is None
        if self._authenticator is None:
            self._authenticator = Authenticator(self._context)
        for name, public_key in clients.items():
            self._authenticator.admit(name, public_key)
        return self._authenticator if is_new else None

    def connect(
        self,
        kind: int,
        address: str,
        *,
        keys: Keys | None = None,
        server_key: bytes = b"",
        watched: int = 0,
        **options: Any,
    ) -> Socket:
        """Return a socket that connects to this address, whose server must have `server_key` if `keys` are given."""
        socket = self._new_socket(kind, options, watched)
        if keys is not None:
            socket.curve_serverkey = server_key
            socket.curve_publickey = keys.public
            socket.curve_secretkey = keys.secret
        socket.connect(address)
        return socket

    def _new_socket(self, kind: int, options: Mapping[str, Any], watched: int) -> Socket:
        socket = self._context.socket(kind)
        socket.linger = 0
        for name, value in options.items():
            setattr(socket, name, value)
        if watched:
            self._monitored.append(socket)
            self.monitors.append(socket.get_monitor_socket(watched))
        return socket

    def pending_events(self) -> Iterator[int]:
        """Yield the monitored events that have happened."""
        for monitor in self.monitors:
            while monitor.poll(0):
                event = monitor.recv_multipart(NOBLOCK)[0][:2]
                yield int.from_bytes(event, sys.byteorder)

    def close(self, linger_ms: int = 0) -> None:
        """Close all sockets but those from `connect` that are not monitored, which their owners close."""
        for socket in {*self._monitored, *self.guards}:
            socket.disable_monitor()
        for guard in self.guards.values():
            guard.join()
        for monitor in self.monitors:
            monitor.close()
        for socket in {*self.listening, *self._monitored}:
            socket.close(linger_ms)
        self._context.term()


def _allow_connections(count: int, address: str) -> None:
    """Raise the limit of open files, if this process needs more for the connections of an address."""
    refused = raise_open_file_limit(count)
    if refused is not None:
        raise UsageError(
            f"{address}: to listen for connections {refused}; raise that limit (ulimit -Hn)"
        )
