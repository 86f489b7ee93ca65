"""The socket on which a run receives control messages. It admits the hosts that have the run's key."""

from __future__ import annotations

from collections import Counter
from typing import Any

import zmq

from flowrl.channels.zmq_sockets import HANDSHAKE_FAILED, NOBLOCK, ZmqSockets
from flowrl.cluster.messages import HEARTBEAT_S, MAX_MESSAGE_BYTES, SILENCE_S
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError
from flowrl.machine.network_address import Address

MAX_RECEIVED_BYTES = 1 << 20  # of a message from a host
MAX_QUEUED = 1000  # messages of each host; also how many one call receives
NO_KEY = "a connection without the run's key"


def control_options(
    address: Address, max_received_bytes: int = MAX_MESSAGE_BYTES
) -> dict[str, Any]:
    """The socket options of both ends."""
    return {
        "maxmsgsize": max_received_bytes,
        "sndhwm": 0,  # the run decides how much it sends; a host that sends too much is not read
        "ipv6": ":" in address.machine,
        "heartbeat_ivl": int(HEARTBEAT_S * 1000),
        "heartbeat_timeout": int(SILENCE_S * 1000),
    }


class ControlSocket:
    """The run's end of all control connections; owned by one thread. Only `receive` waits."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        address, keys = rendezvous.listen_address(), rendezvous.keys()
        self.machine = address.machine
        self.refused: Counter[str] = Counter()
        self._sockets = ZmqSockets()
        try:
            self._socket, self.address = self._sockets.listen(
                zmq.ROUTER,
                str(address),
                keys=keys,
                clients={"a host": keys.public} if keys else None,
                watched=HANDSHAKE_FAILED,
                where="--listen ",
                rcvhwm=MAX_QUEUED,
                router_mandatory=True,  # so that sending to a host that is gone fails
                **control_options(address, MAX_RECEIVED_BYTES),
            )
        except UsageError:
            self._sockets.close()
            raise
        self._poller = zmq.Poller()
        for socket in (self._socket, *self._sockets.monitors):
            self._poller.register(socket, zmq.POLLIN)
        self._authenticator = self._sockets.authenticator
        if self._authenticator is not None:
            self._poller.register(self._authenticator.socket, zmq.POLLIN)

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        """The messages that have arrived, each with the connection that it came by."""
        self._poller.poll(int(timeout_s * 1000))
        if self._authenticator is not None:
            self._authenticator.answer_requests()
        for _ in self._sockets.pending_events():
            self.refused[NO_KEY] += 1
        found = []
        for _ in range(MAX_QUEUED):
            try:
                connection, *parts = self._socket.recv_multipart(NOBLOCK)
            except zmq.Again:
                break
            if len(parts) == 1:
                found.append((connection, parts[0]))
            else:
                self.refused["malformed: not one part"] += 1
        return found

    def send(self, connection: bytes, data: bytes) -> bool:
        """Send a message; return False if the connection is closed."""
        try:
            self._socket.send_multipart([connection, data], NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def close(self, linger_ms: int = 0) -> None:
        """Close all connections; what was sent may take `linger_ms` to leave."""
        self._sockets.close(linger_ms)
