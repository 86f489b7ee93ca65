"""The socket on which a run receives control messages. It admits the hosts that have the run's key."""

from __future__ import annotations

import socket
from typing import Any

import zmq

from flowrl.channels.connection_guard import HANDSHAKE, ConnectionLimits
from flowrl.channels.refusals import RefusalCounts
from flowrl.channels.zmq_sockets import NOBLOCK, ZmqSockets
from flowrl.cluster.messages import HEARTBEAT_S, MAX_MESSAGE_BYTES, SILENCE_S
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import UsageError
from flowrl.machine.network_address import ANY_MACHINE, Address

MAX_RECEIVED_BYTES = 1 << 20  # of a message from a host
MAX_QUEUED = 1000  # messages of each host; also how many one call receives
MIN_CONNECTIONS = 256
CONNECTIONS_OF_HOST = 2  # one, and one that has broken and is not closed yet
MAX_UNREAD_BYTES = 8 << 20  # that a host may have sent before the run reads again
SOURCE_FD = int(zmq.SRCFD)
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


def _connection_limits(hosts: int) -> ConnectionLimits:
    """What peers may use if so many hosts may join."""
    connections = max(MIN_CONNECTIONS, CONNECTIONS_OF_HOST * hosts)
    return ConnectionLimits(connections, MAX_UNREAD_BYTES, hosts)


class ControlSocket:
    """The run's end of all control connections; owned by one thread. Only `receive` waits."""

    def __init__(self, rendezvous: Rendezvous, useful_hosts: int = 0) -> None:
        """At least as many hosts as the run asks for, and as are useful to it, may be connected."""
        address, keys = rendezvous.listen_address(), rendezvous.keys()
        self.machine = address.machine
        self.refused = RefusalCounts()
        self._sockets = ZmqSockets()
        try:
            self._socket, self.address = self._sockets.listen(
                zmq.ROUTER,
                str(address),
                keys=keys,
                clients={"a host": keys.public} if keys else None,
                limits=_connection_limits(max(rendezvous.hosts or 0, useful_hosts)),
                where="--listen ",
                rcvhwm=MAX_QUEUED,
                router_mandatory=True,  # so that sending to a host that is gone fails
                **control_options(address, MAX_RECEIVED_BYTES),
            )
        except UsageError:
            self._sockets.close()
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._guard = self._sockets.guards[self._socket]

    @property
    def join_address(self) -> str:
        """The address at which hosts join, as another machine would write it."""
        return self.address_at(socket.gethostname())

    def address_at(self, machine: str) -> str:
        """The address at which hosts join that know this machine by this name, unless it listens at one address."""
        if self.machine != ANY_MACHINE:
            return self.address
        return self.address.replace(ANY_MACHINE, machine)

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        """The messages that have arrived, each with the connection that it came by."""
        self._poller.poll(int(timeout_s * 1000))
        refused, _ = self._guard.take_counts()
        for reason, times in refused.items():
            self.refused.add(NO_KEY if reason == HANDSHAKE else reason, times)
        found = []
        for _ in range(MAX_QUEUED):
            try:
                connection = self._socket.recv(NOBLOCK)
            except zmq.Again:
                break
            message = self._socket.recv(NOBLOCK, copy=False)
            self._guard.on_message(int(message.get(SOURCE_FD)))
            if message.more:
                self.refused.add("malformed: not one part")
                while self._socket.recv(NOBLOCK, copy=False).more:
                    pass
            else:
                found.append((connection, message.bytes))
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
