"""ZeroMQ sockets with CURVE authentication and monitors.

All ZeroMQ sockets of flowrl are made by `ZmqSockets`: those of channels between processes and machines, and those of
the control connections between a run and its hosts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import zmq
from zmq.utils import z85

from flowrl.channels.keys import Keys
from flowrl.core.errors import UsageError

Socket = zmq.Socket[bytes]

NOBLOCK, SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)  # arithmetic on the enumeration is slow
READABLE = int(zmq.POLLIN)
DISCONNECTED = int(zmq.EVENT_DISCONNECTED)
HANDSHAKE_SUCCEEDED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
HANDSHAKE_ABORTED = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)  # the other side hung up
HANDSHAKE_REFUSED = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
HANDSHAKE_FAILED = HANDSHAKE_ABORTED | HANDSHAKE_REFUSED


class Authenticator:
    """Admits the peers whose public key is known, and names each by its key (ZAP, RFC 27)."""

    def __init__(self, context: zmq.Context[Socket]) -> None:
        self._names: dict[bytes, str] = {}
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def admit(self, name: str, public_key: bytes) -> None:
        self._names[z85.decode(public_key)] = name

    def answer_requests(self) -> None:
        while self.socket.poll(0):
            version, request, _, _, _, mechanism, *credentials = self.socket.recv_multipart()
            curve = mechanism == b"CURVE" and credentials
            name = self._names.get(credentials[0]) if curve else None
            verdict = (b"200", b"OK", name.encode()) if name else (b"400", b"unknown key", b"")
            self.socket.send_multipart([version, request, *verdict, b""])


class ZmqSockets:
    """The sockets of one thread, in a ZeroMQ context of their own."""

    def __init__(self) -> None:
        self.listening: list[Socket] = []
        self.monitors: list[Socket] = []
        self.authenticator: Authenticator | None = None
        self._context: zmq.Context[Socket] = zmq.Context()
        self._monitored: list[Socket] = []

    def listen(
        self,
        kind: int,
        address: str,
        *,
        keys: Keys | None = None,
        clients: Mapping[str, bytes] | None = None,
        watched: int = 0,
        listening_fd: int | None = None,
        where: str = "",
        **options: Any,
    ) -> tuple[Socket, str]:
        """Return a socket that listens at this address, and the address that clients connect to.

        With `keys`, only `clients` (name and public key) are admitted. `watched` selects monitored events,
        `listening_fd` is a descriptor that listens already, `where` begins an error, and `options` are socket options.
        """
        socket = self._new_socket(kind, options, watched)
        self.listening.append(socket)
        if listening_fd is not None:
            socket.setsockopt(zmq.USE_FD, listening_fd)
        if keys is not None:
            if self.authenticator is None:
                self.authenticator = Authenticator(self._context)
            for name, public_key in (clients or {}).items():
                self.authenticator.admit(name, public_key)
            socket.curve_server = True
            socket.curve_secretkey = keys.secret
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            raise UsageError(f"{where}{address}: cannot listen: {error}") from None
        bound = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return socket, bound.rstrip(b"\0").decode()

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
        for socket in self._monitored:
            socket.disable_monitor()
        for monitor in self.monitors:
            monitor.close()
        for socket in {*self.listening, *self._monitored}:
            socket.close(linger_ms)
        if self.authenticator is not None:
            self.authenticator.socket.close()
        self._context.term()
