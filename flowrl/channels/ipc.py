"""The transport between processes of one machine: Unix sockets, and shared memory for large payloads.

The sockets are in a folder that only this user may enter. A payload for which no slot of shared memory is free goes
through the socket.
"""

from __future__ import annotations

import time
from typing import Any

from flowrl.channels.codec import OutgoingPayload
from flowrl.channels.errors import RefusedMessage
from flowrl.channels.messages import (
    SLAB,
    SLAB_OPENED,
    SLAB_RETIRED,
    Frame,
    HeaderCodec,
    ReadSlot,
)
from flowrl.channels.shared_memory import Arena, PeerMemory, Slot, is_shared_memory_supported
from flowrl.channels.transport import SiteSettings, Traffic
from flowrl.channels.zmq_connection import Location, PackedToken, ZmqConnection
from flowrl.channels.zmq_sockets import Socket
from flowrl.channels.zmq_transport import ZmqTransport

MIN_SHARED_BYTES = 32 << 10  # measured by `python -m bench channels threshold`
REPEAT_S = 0.5  # after which an unanswered announcement is repeated
MAX_RECONNECT_MS = 40  # short, because sites wait for each other when a run starts


class IpcConnection(ZmqConnection):
    """A connection that has an arena of shared memory for its peer."""

    def __init__(
        self, socket: Socket, headers: HeaderCodec, max_token_bytes: int, shared_bytes: int
    ) -> None:
        """At most `shared_bytes` of shared memory are held for the peer; 0 turns shared memory off."""
        super().__init__(socket, headers, max_token_bytes)
        self.arena = Arena(shared_bytes, self._announce, self._retire) if shared_bytes else None
        self._announced_s = 0.0

    def _pack_large_payload(self, packed: PackedToken, payload: OutgoingPayload) -> Location:
        slot = self._reserve_slot(payload.nbytes)
        if slot is None:
            return super()._pack_large_payload(packed, payload)
        payload.copy_to(slot.memory)
        packed.slot = slot
        return [slot.slab.number, slot.index, payload.nbytes]

    def _reserve_slot(self, nbytes: int) -> Slot | None:
        if self.arena is None or nbytes < MIN_SHARED_BYTES:
            return None
        slot = self.arena.reserve_slot(nbytes)
        if slot is not None:
            self._traffic.shared_tokens += 1
        elif _now() - self._announced_s > REPEAT_S:
            self.arena.announce_again()
        return slot

    def _announce(self, *slab: int) -> None:
        self._announced_s = _now()
        self.send_frame(SLAB, *slab)

    def _retire(self, number: int) -> None:
        self.send_frame(SLAB_RETIRED, number)

    def close(self, drop: bool = False) -> None:
        super().close(drop)
        if self.arena is not None:
            self.arena.close()

    def traffic(self) -> Traffic:
        if self.arena is not None:
            self._traffic.shared_bytes = self.arena.used_bytes
            self._traffic.not_shared = self.arena.denied
        return self._traffic


class IpcTransport(ZmqTransport[IpcConnection]):
    def __init__(self, settings: SiteSettings) -> None:
        super().__init__(settings)
        self._shared_bytes = settings.shared_bytes if is_shared_memory_supported() else 0
        self.peer_memory: dict[str, PeerMemory] = {}

    def _connect_options(self, peer: str, address: str) -> dict[str, Any]:
        self.peer_memory[peer] = PeerMemory()
        return {"reconnect_ivl_max": MAX_RECONNECT_MS}

    def _new_connection(self, socket: Socket) -> IpcConnection:
        limit = self._settings.max_token_bytes
        return IpcConnection(socket, self._headers, limit, self._shared_bytes)

    def disconnect(self, peer: str) -> None:
        super().disconnect(peer)
        self.peer_memory.pop(peer, PeerMemory()).close()

    def _slot_reader(self, peer: str) -> ReadSlot:
        return self.peer_memory[peer].read_slot

    def _handle_memory_frame(self, peer: str, frame: Frame) -> None:
        memory, connection = self.peer_memory[peer], self._connections[peer]
        if connection.arena is None:
            raise RefusedMessage("shared memory")
        if frame[0] == SLAB:
            connection.send_frame(SLAB_OPENED, frame[1], memory.open(*frame[1:]))
            connection.flush()
        elif frame[0] == SLAB_OPENED:
            connection.arena.on_answer(*frame[1:])
        else:
            memory.close_slab(*frame[1:])

    def close(self) -> None:
        for memory in self.peer_memory.values():
            memory.close()
        super().close()


_now = time.perf_counter
