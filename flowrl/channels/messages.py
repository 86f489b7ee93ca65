"""The messages that sites exchange over sockets, and the frames in them.

A *message* has several parts (ZeroMQ's message parts). The first part, the header, is packed by msgpack. It names the
run, the sending site and the site's *epoch*, which is how often the site was started again, and lists *frames*. A frame
is a list that begins with its kind; a token is one kind of frame.

Small payloads are in the second part, the body. Each array of a large payload is a part of its own, unless the
payload is in shared memory. A token's `location` says which:

    n > 0                 the next n bytes of the body      [k]                   the next k parts
    0                     no payload                        [slab, slot, n]       n bytes of shared memory
    -n < 0                n bytes, compressed in the next part

A part that is larger than a piece is sent as several parts: a part of exactly `PIECE_BYTES` continues in the next one.
So no connection can announce more than one piece at a time. Memory for more is only used for what has arrived.

Every frame of a channel holds the channel's name, its epoch and a number: a token's sequence number, the number of
tokens that the receiver has taken, or the first sequence number that it has not seen. These numbers only grow, so a
frame that arrives twice, late or never does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np

from flowrl.channels.codec import ALIGN, IncomingPayload, Memory
from flowrl.channels.errors import RefusedMessage
from flowrl.channels.wire_format import Compression
from flowrl.core.batch import Array, starts_aligned

Frame = list[Any]

(
    TOKEN,  # channel, epoch, number, clock, tree, location, bytes: an encoded value
    TOKEN_REFERENCE,  # channel, epoch, number, clock, value, bytes: an object of this process, never on a socket
    END,  # channel, epoch, number, reason: the sender is closed; numbered like a token
    CREDIT,  # channel, epoch, number: the receiver has taken this number of tokens
    RESEND,  # channel, epoch, number: the receiver requests all tokens from this number on
    CREDIT_REQUEST,  # channel, epoch, number: the sender has sent this number of tokens, and requests credit
    RECEIVER_CLOSED,  # channel, epoch, number, reason: the receiver is closed; it received this number of tokens
    OUT_OF_BAND,  # text: the status of a busy site; belongs to no channel
    SLAB,  # number, pid, fd, slot_bytes, slots: announces shared memory
    SLAB_OPENED,  # number, bool: whether the peer could open it
    SLAB_RETIRED,  # number: the shared memory is not used any more
) = range(11)

PIECE_BYTES = 1 << 20
MAX_FRAME_BYTES = PIECE_BYTES + 256  # of a piece, encrypted
MAX_HEADER_BYTES = 64 << 20  # a larger header is refused
MAX_TREE_BYTES = MAX_HEADER_BYTES // 2  # of one token; gathered frames add little
MAX_TOKEN_PARTS = 1 << 16  # arrays of one token that are parts
MAX_PARTS = 1 << 19  # of one message, with all pieces
SURROGATES = "surrogatepass"  # Python strings may contain lone surrogates
HEADER_FIELDS = 4  # without the frames
TOKEN_FIELDS = 8
_CHANNEL_FIELDS = (str, int, int)
_FIELD_TYPES: dict[int, tuple[type, ...]] = {
    END: (*_CHANNEL_FIELDS, str),
    CREDIT: _CHANNEL_FIELDS,
    RESEND: _CHANNEL_FIELDS,
    CREDIT_REQUEST: _CHANNEL_FIELDS,
    RECEIVER_CLOSED: (*_CHANNEL_FIELDS, str),
    OUT_OF_BAND: (str,),
    SLAB: (int, int, int, int, int),
    SLAB_OPENED: (int, bool),
    SLAB_RETIRED: (int,),
}

ReadSlot = Callable[[int, int, int], Memory]  # slab, slot, bytes: the slot's memory


def check_frame(frame: Any) -> Frame:
    """Return the frame; raise `RefusedMessage` if it is not a valid frame from a socket."""
    if type(frame) is not list or not frame or type(frame[0]) is not int:
        raise RefusedMessage("malformed")
    if frame[0] == TOKEN:
        if len(frame) != TOKEN_FIELDS or type(frame[1]) is not str:
            raise RefusedMessage("malformed")
        if not type(frame[2]) is type(frame[3]) is type(frame[7]) is int or frame[7] < 0:
            raise RefusedMessage("malformed")
        return frame
    types = _FIELD_TYPES.get(frame[0])
    if types is None or len(frame) != len(types) + 1:
        raise RefusedMessage("malformed")
    for value, kind in zip(frame[1:], types, strict=True):
        if type(value) is not kind:
            raise RefusedMessage("malformed")
    return frame


class HeaderCodec:
    """Packs and reads the headers of one run's messages."""

    def __init__(self, run: bytes, site: str, epoch: int = 0) -> None:
        self.run = run
        self._packer = msgpack.Packer(unicode_errors=SURROGATES)
        self.pack: Callable[[Any], bytes] = self._packer.pack
        self._prefix = b"".join(map(self.pack, (run, site, epoch)))

    def frame_prefix(self, fields: int, *first: Any) -> bytes:
        """Return the packed beginning of a frame: its number of fields, and the first of them."""
        return b"".join((self._packer.pack_array_header(fields), *map(self.pack, first)))

    def header(self, frames: Sequence[bytes], body_bytes: int) -> bytes:
        """Return the header of a message with these packed frames."""
        count = self._packer.pack_array_header(len(frames) + HEADER_FIELDS)
        return b"".join((count, self._prefix, self.pack(body_bytes), *frames))

    def read(self, header: Memory) -> tuple[str, int, int, list[Any]]:
        """Return the sending site that a header names, its epoch, the body's length, and the unchecked frames."""
        if len(header) > MAX_HEADER_BYTES:
            raise RefusedMessage("oversized")
        try:
            fields = msgpack.unpackb(
                header, unicode_errors=SURROGATES, max_map_len=0, max_ext_len=0
            )
        except (ValueError, TypeError, RecursionError, MemoryError):  # msgpack's are ValueErrors
            raise RefusedMessage("malformed") from None
        if type(fields) is not list or len(fields) < HEADER_FIELDS:
            raise RefusedMessage("malformed")
        run, sender, epoch, body_bytes, *frames = fields
        if type(sender) is not str or not type(epoch) is type(body_bytes) is int:
            raise RefusedMessage("malformed")
        if run != self.run:
            raise RefusedMessage("another run")
        return sender, epoch, body_bytes, frames


class SharedPayload:
    """The place of a token's payload in shared memory.

    The slot is opened when the token is accepted, so a duplicate that is dropped does not touch the slot.
    """

    __slots__ = ("nbytes", "read_slot", "slab", "slot")

    def __init__(self, slab: int, slot: int, nbytes: int, read_slot: ReadSlot) -> None:
        self.slab, self.slot, self.nbytes, self.read_slot = slab, slot, nbytes, read_slot

    def locate(self) -> IncomingPayload:
        return IncomingPayload(self.read_slot(self.slab, self.slot, self.nbytes), 0, self.nbytes)


class CompressedPayload:
    """A compressed payload. It is decompressed when the token is accepted."""

    __slots__ = ("compressed", "nbytes")

    def __init__(self, compressed: Memory, nbytes: int) -> None:
        self.compressed, self.nbytes = compressed, nbytes

    def decompress(self, compression: Compression) -> IncomingPayload:
        try:
            payload = compression.decompress(self.compressed, self.nbytes)
        except ValueError:
            raise RefusedMessage("compressed") from None
        return IncomingPayload(_as_aligned(payload), 0, self.nbytes)


def split_part(part: bytes | memoryview) -> Sequence[bytes | memoryview]:
    """Return the pieces of a part, without a copy. The last one is shorter than a piece."""
    if len(part) < PIECE_BYTES:
        return (part,)
    view = memoryview(part)
    return [view[i : i + PIECE_BYTES] for i in range(0, len(view) + 1, PIECE_BYTES)]


def join_pieces(pieces: Sequence[Memory]) -> list[Memory]:
    """Return the parts of these pieces. A part of one piece is not copied."""
    parts: list[Memory] = []
    begun: list[Memory] = []
    for piece in pieces:
        if len(piece) == PIECE_BYTES:
            begun.append(piece)
        elif begun:
            parts.append(b"".join((*begun, piece)))
            begun = []
        else:
            parts.append(piece)
    if begun:
        raise RefusedMessage("incomplete")
    return parts


def attach_payloads(
    frames: list[Any],
    body_bytes: int,
    parts: Sequence[Memory],
    read_slot: ReadSlot | None,
    max_token_bytes: int,
) -> list[Frame]:
    """Check the frames, and replace each token's location by its payload. `parts` are the parts after the header."""
    body, offset, next_part = b"", 0, 0
    if body_bytes:
        if not parts or len(parts[0]) != body_bytes:
            raise RefusedMessage("payload")
        body = bytes(parts[0])  # aligned, and independent of the socket's own memory
        next_part = 1
    for frame in frames:
        check_frame(frame)
        if frame[0] != TOKEN:
            continue
        location = frame[6]
        if type(location) is int and location >= 0:
            frame[6] = IncomingPayload(body, offset, location)
            offset += (location + ALIGN - 1) & -ALIGN
        elif type(location) is int:
            if -location > max_token_bytes or next_part == len(parts):
                raise RefusedMessage("compressed")
            frame[6] = CompressedPayload(parts[next_part], -location)
            next_part += 1
        elif type(location) is not list or not all(type(n) is int and n >= 0 for n in location):
            raise RefusedMessage("payload")
        elif len(location) == 1:
            end = next_part + location[0]
            frame[6] = IncomingPayload.from_parts([*map(_as_aligned, parts[next_part:end])])
            next_part = end
        elif len(location) == 3 and read_slot is not None:
            frame[6] = SharedPayload(location[0], location[1], location[2], read_slot)
        else:
            raise RefusedMessage("payload")
    return frames


def _as_aligned(part: Memory) -> Memory:
    """Return the part, or a copy if it is not aligned like numpy's own memory.

    The alignment decides which instructions BLAS uses, and so the bits of results. ZeroMQ's memory is 8 bytes off.
    """
    array: Array = np.frombuffer(part, np.uint8)
    return part if starts_aligned(array) else array.tobytes()
