"""The end of a lane that gives tokens.

A lane is one edge between two sites: a sender here and a receiver there, that share numbers and nothing else. The
sender numbers its tokens, and keeps each until the receiver's credit says that it was taken: so it can send again what
a broken connection lost, and bounds what is under way.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from flowrl.channels.errors import ChannelBroken, ChannelClosed, RefusedMessage, WouldBlock
from flowrl.channels.items import ASK, END
from flowrl.channels.statistics import ChannelStatistics
from flowrl.channels.transport import ChannelLimits, Connection, PackedFrame
from flowrl.core.state import EMPTY_CLOCK, Clock


class Sender:
    """The end of a lane that gives tokens."""

    def __init__(
        self, name: str, peer: str, epoch: int, limits: ChannelLimits, post: Connection[Any]
    ) -> None:
        self.name, self.peer, self.epoch, self.limits = name, peer, epoch, limits
        self.waited_s = 0.0
        self.send_error: Exception | None = None  # why nothing can be sent any more
        self._post = post
        self._kept: deque[PackedFrame] = deque()
        self._kept_bytes = 0
        self._largest = 0
        self._next = 0  # the next token's number
        self._taken = 0  # so many are known to be taken
        self._clock: Clock | None = None
        self._bytes = self._resent = 0

    def is_ready(self) -> bool:
        """Whether `send` will not block: there is room, or it will say why there never will be."""
        if not self._kept or self.send_error:
            return True
        limits = self.limits
        return len(self._kept) < limits.tokens and self._kept_bytes + self._largest <= limits.bytes

    @property
    def all_taken(self) -> bool:
        """Whether everything sent was taken."""
        return not self._kept

    def send(self, value: Any, clock: Clock = EMPTY_CLOCK) -> None:
        """Give a token away; it must not change any more."""
        if self.send_error:
            raise self.send_error
        if not self.is_ready():
            raise WouldBlock(f"channel '{self.name}' is full: wait until it is ready")
        same = clock is self._clock
        post = self._post
        parcel = post.pack(self.name, self.epoch, self._next, None if same else clock, value)
        self._clock = clock
        self._keep(parcel)
        post.put(parcel)

    def close(self, reason: str = "") -> None:
        """No more tokens; those sent still arrive, and the receiver is told after the last."""
        if not self.send_error:
            self.send_error = ChannelClosed(f"channel '{self.name}' was closed here")
            parcel = self._post.end(END, self.name, self.epoch, self._next, reason)
            self._keep(parcel)
            self._post.put(parcel)

    def _keep(self, parcel: PackedFrame) -> None:
        nbytes = parcel.nbytes
        self._next += 1
        self._bytes += nbytes
        self._kept_bytes += nbytes
        self._kept.append(parcel)
        if nbytes > self._largest:
            self._largest = nbytes

    # what the receiver says

    def credit(self, taken: int) -> None:
        """So many tokens were taken in all."""
        if taken > self._next:
            raise RefusedMessage("credit")
        while self._taken < taken:
            self._kept_bytes -= self._kept.popleft().nbytes
            self._taken += 1

    def send_again(self, number: int) -> None:
        """The receiver has not seen this token and those after it."""
        if not 0 <= number <= self._next:
            raise RefusedMessage("want")
        for parcel in self._from(number):
            self._resent += 1
            self._post.put(parcel)
        self._post.flush()

    def broken(self, number: int, reason: str) -> None:
        """The receiver is gone; it took in so many tokens."""
        for parcel in self._from(number):
            self._post.discard(parcel)
        self._kept.clear()
        self._kept_bytes = 0
        self._taken = self._next
        if self.send_error is None:
            why = f": {reason}" if reason else ""
            self.send_error = ChannelBroken(
                f"channel '{self.name}': site '{self.peer}' takes no more{why}"
            )

    def _from(self, number: int) -> list[PackedFrame]:
        return list(islice(self._kept, max(number - self._taken, 0), None))

    def probe(self) -> None:
        """Ask for the credit, which may be lost."""
        self._post.say(ASK, self.name, self.epoch, self._next)

    def statistics(self) -> ChannelStatistics:
        """Counts so far."""
        return ChannelStatistics(
            lane=self.name,
            peer=self.peer,
            tokens=self._next - isinstance(self.send_error, ChannelClosed),
            bytes=self._bytes,
            queued=len(self._kept),
            queued_bytes=self._kept_bytes,
            waited_s=self.waited_s,
            resent=self._resent,
            duplicates=0,
        )
