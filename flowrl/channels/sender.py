"""The end of a lane that gives tokens.

A lane is one edge between two sites: a sender here and a receiver there, that share numbers and nothing else. The
sender numbers its tokens, and keeps each until the receiver's credit says that it was taken: so it can send again what
a broken connection lost, and bounds what is under way.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from flowrl.channels.errors import Broken, Closed, Refused, WouldBlock
from flowrl.channels.items import ASK, END
from flowrl.channels.post import Bound, Parcel, Post
from flowrl.channels.statistics import LaneStatistics
from flowrl.core.state import EMPTY_CLOCK, Clock


class Sender:
    """The end of a lane that gives tokens."""

    def __init__(self, lane: str, peer: str, epoch: int, bound: Bound, post: Post[Any]) -> None:
        self.lane, self.peer, self.epoch, self.bound = lane, peer, epoch, bound
        self.waited_s = 0.0
        self.over: Exception | None = None  # why nothing can be sent any more
        self._post = post
        self._kept: deque[Parcel] = deque()
        self._kept_bytes = 0
        self._largest = 0
        self._next = 0  # the next token's number
        self._taken = 0  # so many are known to be taken
        self._clock: Clock | None = None
        self._bytes = self._resent = 0

    def ready(self) -> bool:
        """Whether `send` will not block: there is room, or it will say why there never will be."""
        if not self._kept or self.over:
            return True
        bound = self.bound
        return len(self._kept) < bound.tokens and self._kept_bytes + self._largest <= bound.bytes

    @property
    def settled(self) -> bool:
        """Whether everything sent was taken."""
        return not self._kept

    def send(self, value: Any, clock: Clock = EMPTY_CLOCK) -> None:
        """Give a token away; it must not change any more."""
        if self.over:
            raise self.over
        if not self.ready():
            raise WouldBlock(f"lane '{self.lane}' is full: wait until it is ready")
        same = clock is self._clock
        post = self._post
        parcel = post.pack(self.lane, self.epoch, self._next, None if same else clock, value)
        self._clock = clock
        self._keep(parcel)
        post.put(parcel)

    def close(self, reason: str = "") -> None:
        """No more tokens; those sent still arrive, and the receiver is told after the last."""
        if not self.over:
            self.over = Closed(f"lane '{self.lane}' was closed here")
            parcel = self._post.end(END, self.lane, self.epoch, self._next, reason)
            self._keep(parcel)
            self._post.put(parcel)

    def _keep(self, parcel: Parcel) -> None:
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
            raise Refused("credit")
        while self._taken < taken:
            self._kept_bytes -= self._kept.popleft().nbytes
            self._taken += 1

    def send_again(self, number: int) -> None:
        """The receiver has not seen this token and those after it."""
        if not 0 <= number <= self._next:
            raise Refused("want")
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
        if self.over is None:
            why = f": {reason}" if reason else ""
            self.over = Broken(f"lane '{self.lane}': site '{self.peer}' takes no more{why}")

    def _from(self, number: int) -> list[Parcel]:
        return list(islice(self._kept, max(number - self._taken, 0), None))

    def nudge(self) -> None:
        """Ask for the credit, which may be lost."""
        self._post.say(ASK, self.lane, self.epoch, self._next)

    def statistics(self) -> LaneStatistics:
        """Counts so far."""
        return LaneStatistics(
            lane=self.lane,
            peer=self.peer,
            tokens=self._next - isinstance(self.over, Closed),
            bytes=self._bytes,
            queued=len(self._kept),
            queued_bytes=self._kept_bytes,
            waited_s=self.waited_s,
            resent=self._resent,
            duplicates=0,
        )
