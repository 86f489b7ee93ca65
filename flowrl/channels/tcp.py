"""The transport between machines.

CURVE encrypts messages and authenticates both ends by their keys. Without keys, a site may only listen at a loopback
address.
"""

from __future__ import annotations

from typing import Any

import zmq

from flowrl.channels.connection_guard import ConnectionLimits
from flowrl.channels.errors import RefusedMessage
from flowrl.channels.zmq_connection import ZmqConnection
from flowrl.channels.zmq_sockets import Socket
from flowrl.channels.zmq_transport import ZmqTransport
from flowrl.core.errors import UsageError

LOOPBACK = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")
MAX_RECONNECT_MS = 1000
CONNECTIONS_OF_PEER = (
    4  # of the site and its beacon, and as many that have broken and are not closed yet
)
CONNECTIONS_AT_START = 2  # of each peer: those of the site and its beacon
OTHER_CONNECTIONS = 16
MAX_PEERS_WITHOUT_KEYS = 60
MAX_UNREAD_TOKENS = (
    2  # tokens of the largest size that a peer may have sent before the site reads again
)
SOURCE_FD = int(zmq.SRCFD)
HEARTBEAT_MS, SILENCE_MS = 2000, 10_000  # a machine may vanish without closing its connections


class TcpConnection(ZmqConnection):
    """A connection to a site on another machine."""

    spans_machines = True


class TcpTransport(ZmqTransport[TcpConnection]):
    def _listen_options(self, address: str) -> dict[str, Any]:
        keys = self._settings.keys
        if keys is None and not address.startswith(LOOPBACK):
            raise UsageError(
                f"{address}: other machines can reach this address, which needs keys; "
                "give each site its keys, or listen on tcp://127.0.0.1"
            )
        clients = None if keys is None else keys.known
        return {"keys": keys, "clients": clients, **_network_options(address)}

    def _connection_limits(self) -> ConnectionLimits:
        keys = self._settings.keys
        peers = MAX_PEERS_WITHOUT_KEYS if keys is None else len(keys.known)
        connections = CONNECTIONS_OF_PEER * peers + OTHER_CONNECTIONS
        unread_bytes = MAX_UNREAD_TOKENS * self._settings.max_token_bytes
        return ConnectionLimits(connections, unread_bytes, CONNECTIONS_AT_START * peers)

    def _connect_options(self, peer: str, address: str) -> dict[str, Any]:
        keys = self._settings.keys
        return {
            "reconnect_ivl_max": MAX_RECONNECT_MS,
            "keys": keys,
            "server_key": b"" if keys is None else keys.known[peer],
            **_network_options(address),
        }

    def _new_connection(self, socket: Socket) -> TcpConnection:
        return TcpConnection(socket, self._headers, self._settings.max_token_bytes)

    def _authenticate(self, sender: str, header: zmq.Frame) -> None:
        if self._settings.keys is not None and header.get("User-Id") != sender:
            raise RefusedMessage("another site's key")
        fd: Any = header.get(SOURCE_FD)
        for guard in self._sockets.guards.values():
            guard.on_message(fd)


def _network_options(address: str) -> dict[str, Any]:
    return {
        "ipv6": "[" in address,
        "heartbeat_ivl": HEARTBEAT_MS,
        "heartbeat_timeout": SILENCE_MS,
    }
