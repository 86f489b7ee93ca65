"""A connection to a site in another process: frames are gathered into messages on a socket.

A frame is sent at once if no message was sent to this peer within `BURST_S`. Otherwise it is gathered. Gathered frames
are sent as one message: when there are enough of them, with the first frame after `BURST_S`, or before the site waits.
"""

from __future__ import annotations

import time
from typing import Any

import zmq

from flowrl.channels.codec import ALIGN, OutgoingPayload, encode, encode_clock
from flowrl.channels.errors import UnsendableValue
from flowrl.channels.messages import (
    MAX_TOKEN_PARTS,
    MAX_TREE_BYTES,
    PIECE_BYTES,
    TOKEN,
    TOKEN_FIELDS,
    HeaderCodec,
    split_part,
)
from flowrl.channels.shared_memory import Slot
from flowrl.channels.transport import Connection, Traffic
from flowrl.channels.wire_format import (
    AS_IT_IS,
    MIN_COMPRESSED_BYTES,
    Compression,
    WireFormat,
)
from flowrl.channels.zmq_sockets import NOBLOCK, SNDMORE, Socket
from flowrl.core.state import Clock

BURST_S = 200e-6  # frames that follow a message within this time are gathered
GATHER_BYTES = 64 << 10  # a message is sent when it holds this many bytes
GATHER_FRAMES = 256  # or this many frames
MAX_BODY_BYTES = 16 << 10  # larger payloads are not copied into the body

Location = int | list[int]


class PackedToken:
    """A packed token, or another frame."""

    __slots__ = ("body", "frame", "nbytes", "parts", "slot")

    def __init__(self) -> None:
        self.frame = self.body = b""
        self.nbytes = 0  # of the value, before it is narrowed and compressed
        self.parts: list[memoryview] = []
        self.slot: Slot | None = None

    @property
    def wire_bytes(self) -> int:
        """The bytes in the message."""
        return len(self.frame) + len(self.body) + sum(map(len, self.parts))

    def release(self) -> None:
        if self.slot is not None:
            self.slot.free()


class ZmqConnection(Connection[PackedToken]):
    """Gathers frames for one other site, and sends them."""

    def __init__(self, socket: Socket, headers: HeaderCodec, max_token_bytes: int) -> None:
        super().__init__()
        self._socket, self._headers, self._max_token_bytes = socket, headers, max_token_bytes
        self._pack = headers.pack
        self._prefixes: dict[tuple[str, int], bytes] = {}
        self._frames: list[bytes] = []
        self._body: list[bytes] = []
        self._parts: list[memoryview] = []
        self._gathered_bytes = 0
        self._sent_s = 0.0
        self._traffic = Traffic()

    def pack_token(
        self,
        channel: str,
        epoch: int,
        number: int,
        clock: Clock | None,
        value: Any,
        wire: WireFormat = AS_IT_IS,
    ) -> PackedToken:
        tree, payload = encode(value, wire.narrows)
        nbytes = payload.nbytes + payload.narrowed_bytes
        if nbytes > self._max_token_bytes:
            raise UnsendableValue(
                f"channel '{channel}': cannot send a token of {nbytes} bytes; a token holds at most "
                f"{self._max_token_bytes} bytes: send it in parts, or raise the limit"
            )
        packed = PackedToken()
        location: Location
        if wire.compression is not None and payload.nbytes >= MIN_COMPRESSED_BYTES:
            location = self._pack_compressed(packed, payload, wire.compression)
        else:
            location = self._pack_payload(packed, payload)
        try:
            packed_tree = self._pack(tree)
            _check_size(channel, len(packed_tree), len(packed.parts))
            packed.nbytes = nbytes + len(packed_tree)
            packed_clock = NO_CLOCK if clock is None else self._pack(encode_clock(clock))
            prefix = self._prefixes.get((channel, epoch)) or self._add_prefix(channel, epoch)
            rest = self._pack(location), self._pack(packed.nbytes)
            number_bytes = self._pack(number)
            packed.frame = b"".join((prefix, number_bytes, packed_clock, packed_tree, *rest))
        except (TypeError, ValueError, OverflowError) as error:
            raise UnsendableValue(f"channel '{channel}': {error}") from error
        return packed

    def _pack_payload(self, packed: PackedToken, payload: OutgoingPayload) -> Location:
        if payload.nbytes > MAX_BODY_BYTES:
            return self._pack_large_payload(packed, payload)
        packed.body = payload.as_bytes() if payload.nbytes else b""
        return len(packed.body)

    def _pack_compressed(
        self, packed: PackedToken, payload: OutgoingPayload, compression: Compression
    ) -> Location:
        """Pack the payload as one compressed part, unless it is smaller as it is."""
        content = payload.as_bytes()
        compressed = compression.compress(content)
        if len(compressed) >= len(content):
            return self._pack_payload(packed, payload)
        packed.parts = [memoryview(compressed)]
        return -len(content)

    def _pack_large_payload(self, packed: PackedToken, payload: OutgoingPayload) -> Location:
        packed.parts = payload.as_parts()
        return [len(packed.parts)]

    def _add_prefix(self, channel: str, epoch: int) -> bytes:
        """Store the beginning of all token frames of a channel."""
        prefix = self._headers.frame_prefix(TOKEN_FIELDS, TOKEN, channel, epoch)
        self._prefixes[channel, epoch] = prefix
        return prefix

    def pack_frame(self, *frame: Any) -> PackedToken:
        packed = PackedToken()
        packed.frame = self._pack(frame)
        return packed

    def send(self, packed: PackedToken) -> None:
        self._frames.append(packed.frame)
        body = packed.body
        if body:
            self._body.append(body)
            if len(body) % ALIGN:
                self._body.append(_PADDING[len(body) % ALIGN :])
        elif packed.parts:
            self._parts += packed.parts
        self._gathered_bytes += packed.nbytes if packed.slot is None else len(packed.frame)
        self._flush_if_due()

    def send_frame(self, *frame: Any) -> None:
        self._frames.append(self._pack(frame))
        self._flush_if_due()

    def _flush_if_due(self) -> None:
        if (
            self._gathered_bytes >= GATHER_BYTES
            or len(self._frames) >= GATHER_FRAMES
            or _now() - self._sent_s > BURST_S
        ):
            self.flush()

    def flush(self) -> None:
        if not self._frames:
            return
        if self._deferred_credits:
            self._send_deferred_credits()
        body = b"".join(self._body)
        parts: list[bytes | memoryview] = [body, *self._parts] if body else [*self._parts]
        header = self._headers.header(self._frames, len(body))
        pieces: list[bytes | memoryview] = [header]
        if parts or len(header) >= PIECE_BYTES:
            pieces = [piece for part in (header, *parts) for piece in split_part(part)]
        try:
            self._socket.send(pieces[0], NOBLOCK | SNDMORE if len(pieces) > 1 else NOBLOCK)
        except zmq.Again:
            return  # the frames stay gathered
        traffic = self._traffic
        for i, piece in enumerate(pieces[1:], 2):
            more = SNDMORE if i < len(pieces) else 0
            self._socket.send(piece, more, copy=False)  # pyzmq copies small pieces
            traffic.bytes += len(piece)
        traffic.bytes += len(pieces[0])
        self._frames, self._body, self._parts = [], [], []
        self._gathered_bytes = 0
        self._sent_s = _now()

    def _send_deferred_credits(self) -> None:
        self._sent_s = _now()  # so that the credits are gathered into one message
        super()._send_deferred_credits()

    def close(self, drop: bool = False) -> None:
        if not drop:
            self.flush()
        self._socket.close(0 if drop else None)

    def traffic(self) -> Traffic:
        return self._traffic


def _check_size(channel: str, tree_bytes: int, parts: int) -> None:
    """Refuse to send a token that its receiver would refuse."""
    if tree_bytes > MAX_TREE_BYTES:
        raise UnsendableValue(
            f"channel '{channel}': cannot send a token with {tree_bytes} bytes outside of arrays; at most "
            f"{MAX_TREE_BYTES} bytes are sent: put large data into numpy arrays"
        )
    if parts > MAX_TOKEN_PARTS:
        raise UnsendableValue(
            f"channel '{channel}': cannot send a token of {parts} arrays; a token holds at most {MAX_TOKEN_PARTS} "
            "arrays: join them"
        )


_PADDING = bytes(ALIGN)
NO_CLOCK = b"\xc0"  # msgpack's nil
_now = time.perf_counter
