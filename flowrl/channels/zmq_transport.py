"""The base of transports over ZeroMQ: one socket that receives from all peers, and one that sends to each peer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import zmq

from flowrl.channels.connection_guard import (
    DISCONNECTED,
    HANDSHAKE,
    HANDSHAKE_FAILED,
    ConnectionLimits,
)
from flowrl.channels.errors import RefusedMessage
from flowrl.channels.messages import (
    MAX_FRAME_BYTES,
    MAX_HEADER_BYTES,
    MAX_PARTS,
    PIECE_BYTES,
    SLAB,
    Frame,
    HeaderCodec,
    ReadSlot,
    attach_payloads,
    join_pieces,
)
from flowrl.channels.transport import Received, SiteSettings
from flowrl.channels.zmq_connection import ZmqConnection
from flowrl.channels.zmq_sockets import (
    NOBLOCK,
    READABLE,
    Socket,
    ZmqSockets,
)

MAX_MESSAGES = 64  # received from a socket in one poll
LINGER_MS = 1000  # in which messages may still leave after the site has ended
RECONNECT_MS = 10

C = TypeVar("C", bound=ZmqConnection)


class ZmqTransport(ABC, Generic[C]):
    """The connections of one site over ZeroMQ. A subclass provides the options and connections of its scheme."""

    def __init__(self, settings: SiteSettings) -> None:
        self._settings = settings
        self._sockets = ZmqSockets()
        self._headers = HeaderCodec(settings.run, settings.site, settings.epoch)
        self._connections: dict[str, C] = {}
        self._epochs: dict[str, int] = {}  # of the peers
        self._lost_connections = 0

    def _listen_options(self, address: str) -> dict[str, Any]:
        return {}

    def _connection_limits(self) -> ConnectionLimits | None:
        """Return what peers may use, if the address can be reached by others than this user."""
        return None

    @abstractmethod
    def _connect_options(self, peer: str, address: str) -> dict[str, Any]: ...

    @abstractmethod
    def _new_connection(self, socket: Socket) -> C: ...

    def _authenticate(self, sender: str, header: zmq.Frame) -> None:
        """Raise `RefusedMessage` if a message is not from the site that it names."""

    def _slot_reader(self, peer: str) -> ReadSlot | None:
        """Return the function that reads a peer's shared memory, if the transport has shared memory."""
        return None

    def _handle_memory_frame(self, peer: str, frame: Frame) -> None:
        raise RefusedMessage("shared memory")

    def listen(self, address: str, listening_fd: int | None = None) -> str:
        limits = self._connection_limits()
        _, bound = self._sockets.listen(
            zmq.PULL,
            address,
            limits=limits,
            watched=0 if limits else DISCONNECTED | HANDSHAKE_FAILED,
            listening_fd=listening_fd,
            maxmsgsize=MAX_FRAME_BYTES,
            **self._listen_options(address),
        )
        return bound

    def connect(self, peer: str, address: str, epoch: int = 0) -> C:
        socket = self._sockets.connect(
            zmq.PUSH,
            address,
            linger=LINGER_MS,
            sndhwm=0,  # no limit: channels limit the tokens in flight, and a send never blocks
            reconnect_ivl=RECONNECT_MS,
            **self._connect_options(peer, address),
        )
        connection = self._connections[peer] = self._new_connection(socket)
        self._epochs[peer] = epoch
        return connection

    def disconnect(self, peer: str) -> None:
        self._connections.pop(peer, None)

    def readers(self) -> Mapping[Any, Callable[[], Received]]:
        readers: dict[Any, Callable[[], Received]] = {}
        for socket in self._sockets.listening:
            readers[socket] = partial(self._receive, socket)
        for monitor in self._sockets.monitors:
            readers[monitor] = self._count_events
        return readers

    def _count_events(self) -> Received:
        for event in self._sockets.pending_events():
            if event == DISCONNECTED:
                self._lost_connections += 1
            else:
                self._settings.count_refusal(HANDSHAKE, "?")
        for guard in self._sockets.guards.values():
            refused, lost_connections = guard.take_counts()
            self._lost_connections += lost_connections
            for reason, times in refused.items():
                self._settings.count_refusal(reason, "?", times)
        return []

    def _receive(self, socket: Socket) -> Received:
        received: Received = []
        for _ in range(MAX_MESSAGES):
            try:
                header = socket.recv(NOBLOCK, copy=False)
            except zmq.Again:  # the message that made the socket readable was incomplete
                break
            rest = self._receive_rest(socket, header) if header.more else []
            if rest is None:
                self._settings.count_refusal("oversized", "?")
            else:
                self._open_message(header, rest, received)
            events: Any = socket.get(zmq.EVENTS)  # costs less than a failing recv
            if not events & READABLE:
                break
        return received

    def _receive_rest(self, socket: Socket, header: zmq.Frame) -> list[zmq.Frame] | None:
        """Return the other pieces of a message, or None if they are more than any site sends."""
        rest: list[zmq.Frame] | None = []
        left_bytes = self._settings.max_token_bytes + MAX_HEADER_BYTES
        piece = header
        while piece.more:
            piece = socket.recv(NOBLOCK, copy=False)
            left_bytes -= len(piece)
            if rest is not None:
                rest.append(piece)
                if left_bytes < 0 or len(rest) > MAX_PARTS:
                    rest = None
        return rest

    def _open_message(self, header: zmq.Frame, rest: list[zmq.Frame], received: Received) -> None:
        """Append the frames of a message; count it as refused if it is invalid."""
        pieces = [np.frombuffer(piece.buffer.toreadonly(), np.uint8) for piece in rest]
        packed = header.buffer
        sender = "?"
        try:
            if len(packed) == PIECE_BYTES:
                packed, *parts = join_pieces([packed, *pieces])
            else:
                parts = join_pieces(pieces)
            name, epoch, body_bytes, frames = self._headers.read(packed)
            if name not in self._connections:
                raise RefusedMessage("unknown site")
            self._authenticate(name, header)
            sender = name
            if epoch != self._epochs[name]:
                raise RefusedMessage("another epoch")
            frames = attach_payloads(
                frames,
                body_bytes,
                parts,
                self._slot_reader(sender),
                self._settings.max_token_bytes,
            )
        except RefusedMessage as error:
            self._settings.count_refusal(error.reason, sender)
            return
        for frame in frames:
            if frame[0] < SLAB:
                received.append((sender, frame))
                continue
            try:
                self._handle_memory_frame(sender, frame)
            except RefusedMessage as error:
                self._settings.count_refusal(error.reason, sender)

    def lost_connections(self) -> int:
        self._count_events()
        return self._lost_connections

    def close(self) -> None:
        """Close all sockets. Messages may take a second to leave."""
        self._sockets.close()
