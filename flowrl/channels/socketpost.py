"""The way to a site in another process: messages on a socket, large payloads through shared memory.

What comes in a burst is gathered: an item goes at once if nothing was sent to this site for a little while, and
otherwise with those that follow it, when enough has come together, when that little while is over, or when the
site is about to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import zmq

from flowrl.channels.arena import Arena, Slot
from flowrl.channels.encode import ALIGN, clock_tree, encode
from flowrl.channels.errors import UnsendableValue
from flowrl.channels.items import FORGET, SLAB, TOKEN, TOKEN_PARTS
from flowrl.channels.message import Heads
from flowrl.channels.statistics import ConnectionTraffic
from flowrl.core.state import Clock

BURST_S = 200e-6  # what follows within this time is gathered
GATHER_BYTES = 64 << 10  # gathered bytes that are worth a message
GATHER_ITEMS = 256
BODY_BYTES = 16 << 10  # a payload up to this size is copied into the body; larger ones are frames
SHARED_BYTES = (
    32 << 10
)  # from here on shared memory is faster: `python -m bench channels threshold`
REPEAT_S = 0.5  # what was announced and not answered is announced again


class Packed:
    """A token ready to be posted, once or again."""

    __slots__ = ("body", "frames", "item", "nbytes", "slot")

    def __init__(self) -> None:
        self.item = self.body = b""
        self.nbytes = 0
        self.frames: list[memoryview] = []
        self.slot: Slot | None = None


class SocketPost:
    """Gathers items for one other site, and sends them."""

    def __init__(
        self, socket: zmq.Socket[bytes], heads: Heads, limit_bytes: int, shared_bytes: int
    ) -> None:
        """`shared_bytes`: how much shared memory may be held for this site; 0 for none."""
        self._socket, self._heads, self._limit_bytes = socket, heads, limit_bytes
        self.arena = Arena(shared_bytes, self._announce, self._forget) if shared_bytes else None
        self._pack = heads.pack
        self._starts: dict[tuple[str, int], bytes] = {}
        self._items: list[bytes] = []
        self._body: list[bytes] = []
        self._frames: list[memoryview] = []
        self._owed: list[Callable[[], None]] = []
        self._gathered = 0  # bytes
        self._sent_s = self._announced_s = 0.0
        self._messages = self._bytes = self._shared_tokens = 0

    def pack(self, lane: str, epoch: int, number: int, clock: Clock | None, value: Any) -> Packed:
        """Make a token ready."""
        tree, payload = encode(value)
        nbytes = payload.nbytes
        if nbytes > self._limit_bytes:
            what = (
                f"channel '{lane}': cannot send a token of {nbytes} bytes; a message holds at most"
            )
            raise UnsendableValue(
                f"{what} {self._limit_bytes}: send it in parts, or raise the limit"
            )
        packed = Packed()
        where: int | list[int]
        if nbytes <= BODY_BYTES:
            packed.body = payload.joined() if nbytes else b""
            where = len(packed.body)
        elif slot := self._slot(nbytes):
            payload.copy_to(slot.memory)
            packed.slot = slot
            where = [slot.slab.number, slot.index, nbytes]
        else:
            packed.frames = payload.frames()
            where = [len(packed.frames)]
        try:
            self._pack_item(packed, lane, epoch, number, clock, tree, where, nbytes)
        except (TypeError, ValueError, OverflowError) as error:
            raise UnsendableValue(f"channel '{lane}': {error}") from error
        return packed

    def _pack_item(
        self, packed: Packed, lane: str, epoch: int, number: int, clock: Clock | None, tree: Any,
        where: Any, nbytes: int
    ) -> None:  # fmt: skip
        """The token's item, in parts, as its tree counts in the token's bytes."""
        pack = self._pack
        tree = pack(tree)
        packed.nbytes = nbytes + len(tree)
        then = NO_CLOCK if clock is None else pack(clock_tree(clock))
        start = self._starts.get((lane, epoch)) or self._start(lane, epoch)
        rest = pack(where), pack(packed.nbytes)
        packed.item = b"".join((start, pack(number), then, tree, *rest))

    def _start(self, lane: str, epoch: int) -> bytes:
        """How the items of a lane begin."""
        start = self._starts[lane, epoch] = self._heads.start(TOKEN_PARTS, TOKEN, lane, epoch)
        return start

    def _slot(self, nbytes: int) -> Slot | None:
        if self.arena is None or nbytes < SHARED_BYTES:
            return None
        slot = self.arena.take(nbytes)
        if slot is None:
            self._announce_again()
        else:
            self._shared_tokens += 1
        return slot

    def end(self, *item: Any) -> Packed:
        """Make the end of a lane ready."""
        packed = Packed()
        packed.item = self._pack(item)
        return packed

    def put(self, parcel: Packed) -> None:
        """Post a token, now or with those that follow."""
        self._items.append(parcel.item)
        body = parcel.body
        if body:
            self._body.append(body)
            if len(body) % ALIGN:
                self._body.append(_PADDING[len(body) % ALIGN :])
        elif parcel.frames:
            self._frames += parcel.frames
        self._gathered += parcel.nbytes if parcel.slot is None else len(parcel.item)
        self._gather()

    def say(self, *item: Any) -> None:
        """Post a small item, now or with those that follow."""
        self._items.append(self._pack(item))
        self._gather()

    def owe(self, credit: Callable[[], None]) -> None:
        """Call `credit` with the next message."""
        self._owed.append(credit)

    def discard(self, parcel: Packed) -> None:
        """The other site will never take this in: its slot is free again."""
        if parcel.slot is not None:
            parcel.slot.free()

    def _gather(self) -> None:
        if (
            self._gathered >= GATHER_BYTES
            or len(self._items) >= GATHER_ITEMS
            or _now() - self._sent_s > BURST_S
        ):
            self.flush()

    def flush(self) -> None:
        """Send what was gathered."""
        if not self._items:
            return
        if self._owed:
            self._say_owed()
        body = b"".join(self._body)
        frames: list[bytes | memoryview] = [body, *self._frames] if body else [*self._frames]
        head = self._heads.head(self._items, len(body))
        try:
            self._socket.send(head, NOBLOCK | SNDMORE if frames else NOBLOCK)
        except zmq.Again:
            return  # it stays gathered
        for i, frame in enumerate(frames, 1):
            more = SNDMORE if i < len(frames) else 0
            self._socket.send(frame, more, copy=False)  # pyzmq copies what is small
            self._bytes += len(frame)
        self._messages += 1
        self._bytes += len(head)
        self._items, self._body, self._frames = [], [], []
        self._gathered = 0
        self._sent_s = _now()

    def settle(self) -> None:
        """Give the credits that are owed, and send what was gathered."""
        if self._owed:
            self._say_owed()
        self.flush()

    def _say_owed(self) -> None:
        owed, self._owed = self._owed, []
        self._sent_s = _now()  # so that what they say is gathered
        for credit in owed:
            credit()

    # shared memory

    def _announce(self, *slab: int) -> None:
        self._announced_s = _now()
        self.say(SLAB, *slab)

    def _forget(self, number: int) -> None:
        self.say(FORGET, number)

    def _announce_again(self) -> None:
        if self.arena is not None and _now() - self._announced_s > REPEAT_S:
            self.arena.announce_again()

    def close(self, drop: bool = False) -> None:
        """Send the rest, or drop it; let go of the socket and the shared memory."""
        if not drop:
            self.flush()
        if self.arena is not None:
            self.arena.close()
        self._socket.close(0 if drop else None)

    def statistics(self) -> ConnectionTraffic:
        """Counts so far."""
        arena = self.arena
        return ConnectionTraffic(
            messages=self._messages,
            bytes=self._bytes,
            shared_tokens=self._shared_tokens,
            shared_bytes=arena.used_bytes if arena else 0,
            not_shared=arena.denied if arena else 0,
        )


_PADDING = bytes(ALIGN)
NO_CLOCK = b"\xc0"  # msgpack's nil
NOBLOCK, SNDMORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)  # the enumeration's arithmetic is slow
_now = time.perf_counter
