"""A message on a socket: a head that msgpack reads, and raw bytes beside it.

The head names the run and the sender, and lists items. Small payloads follow each other in the second frame, the
body; large arrays are frames of their own, and what lies in shared memory is only named. A token's `where` says which:

    n > 0                 the next n bytes of the body      [k]                   the next k frames
    0                     no payload                        [slab, slot, n]       n bytes of shared memory
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from flowrl.channels.decode import Memory, Received
from flowrl.channels.encode import ALIGN
from flowrl.channels.errors import RefusedMessage
from flowrl.channels.items import TOKEN, Item, check_item
from flowrl.core.batch import Array, starts_aligned

HEAD_BYTES = 64 << 20  # a larger head is refused
SURROGATES = "surrogatepass"  # Python's strings may hold halves of characters

Shared = Callable[[int, int, int], Memory]  # slab, slot, bytes: the memory


@dataclass(slots=True, eq=False)
class Lazy:
    """Where a token's payload is; found when the token is taken in, so that what is dropped costs nothing."""

    slab: int
    slot: int
    nbytes: int
    shared: Shared

    def __call__(self) -> Received:
        return Received(self.shared(self.slab, self.slot, self.nbytes), 0, self.nbytes)


class Heads:
    """Makes and reads the heads of one run's messages."""

    def __init__(self, run: bytes, me: str) -> None:
        self.run = run
        self._packer = msgpack.Packer(unicode_errors=SURROGATES)
        self.pack: Callable[[Any], bytes] = self._packer.pack
        self._prefix = self.pack(run) + self.pack(me)

    def start(self, parts: int, *first: Any) -> bytes:
        """How an item of so many parts begins, with the first of them."""
        return b"".join((self._packer.pack_array_header(parts), *map(self.pack, first)))

    def head(self, items: Sequence[bytes], body_bytes: int) -> bytes:
        """The head of a message of these packed items."""
        count = self._packer.pack_array_header(len(items) + 3)
        return b"".join((count, self._prefix, self.pack(body_bytes), *items))

    def read(self, head: Memory) -> tuple[str, int, list[Any]]:
        """The sender that a head names, the body's length, and the items."""
        if len(head) > HEAD_BYTES:
            raise RefusedMessage("oversized")
        try:
            items = msgpack.unpackb(head, unicode_errors=SURROGATES, max_map_len=0, max_ext_len=0)
        except (ValueError, TypeError, RecursionError, MemoryError):  # msgpack's are ValueErrors
            raise RefusedMessage("malformed") from None
        if type(items) is not list or len(items) < 3:
            raise RefusedMessage("malformed")
        run, sender, body_bytes, *items = items
        if type(sender) is not str or type(body_bytes) is not int:
            raise RefusedMessage("malformed")
        if run != self.run:
            raise RefusedMessage("another run")
        return sender, body_bytes, items


def _even(frame: Memory) -> Memory:
    """Memory that begins where an array's own would: products of matrices take other instructions elsewhere, and
    give other bits. ZeroMQ's begins 8 bytes after such a place."""
    array: Array = np.frombuffer(frame, np.uint8)
    return frame if starts_aligned(array) else array.tobytes()


def place(
    items: list[Any], body_bytes: int, frames: Sequence[Memory], shared: Shared | None
) -> list[Item]:
    """The items, checked, each token with its payload in place of its `where`."""
    body, begin, frame = b"", 0, 0
    if body_bytes:
        if not frames or len(frames[0]) != body_bytes:
            raise RefusedMessage("payload")
        body = frames[0].tobytes()  # aligned, and not held in the socket's own memory
        frame = 1
    for item in items:
        check_item(item)
        if item[0] != TOKEN:
            continue
        where = item[6]
        if type(where) is int and where >= 0:
            item[6] = Received(body, begin, where)
            begin += (where + ALIGN - 1) & -ALIGN
        elif type(where) is not list or not all(type(n) is int and n >= 0 for n in where):
            raise RefusedMessage("payload")
        elif len(where) == 1:
            item[6] = Received.of_frames([*map(_even, frames[frame : frame + where[0]])])
            frame += where[0]
        elif len(where) == 3 and shared is not None:
            item[6] = Lazy(where[0], where[1], where[2], shared)
        else:
            raise RefusedMessage("payload")
    return items
