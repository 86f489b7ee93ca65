"""The end of a lane that takes tokens.

The receiver takes in the next number only: what it has seen it drops, and at a gap it asks. Its credit, how many
tokens were taken, is given when half of what the lane holds was taken, and before the site waits.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from flowrl.channels.errors import ChannelClosed, RefusedMessage, WouldBlock
from flowrl.channels.items import BREAK, CREDIT, WANT
from flowrl.channels.statistics import ChannelStatistics
from flowrl.channels.transport import ChannelLimits, Connection
from flowrl.core.state import EMPTY_CLOCK, Clock

Token = tuple[Any, Clock]


class Receiver:
    """The end of a lane that takes tokens."""

    def __init__(
        self, name: str, peer: str, epoch: int, limits: ChannelLimits, post: Connection[Any]
    ) -> None:
        self.name, self.peer, self.epoch, self.limits = name, peer, epoch, limits
        self.waited_s = 0.0
        self.closed = False
        self._why = ""  # it was closed
        self._post = post
        self._queue: deque[tuple[Token, int]] = deque()
        self._queued_bytes = 0
        self._end: str | None = None  # the sender's last word
        self._next = 0  # the number of the token to come
        self._taken = self._credited = 0
        self._uncredited_bytes = self._largest = 0
        self._asked = -1  # the gap that was asked for
        self._clock = EMPTY_CLOCK
        self._bytes = self._duplicates = 0

    def is_ready(self) -> bool:
        """Whether `take` will not block: a token is here, or it will say why none will come."""
        return bool(self._queue) or self._end is not None or self.closed

    def __len__(self) -> int:
        """Tokens that are here."""
        return len(self._queue)

    def take(self) -> Token:
        """The next token."""
        if not self._queue:
            raise self._nothing()
        token, nbytes = self._queue.popleft()
        if self._taken == self._credited:
            self._post.owe(self.give_credit)
        self._taken += 1
        self._bytes += nbytes
        self._queued_bytes -= nbytes
        self._uncredited_bytes += nbytes
        if self._end is not None:
            self._take_end()
        if self._blocks():
            self.give_credit()
        return token

    def _blocks(self) -> bool:
        """Whether the sender may be blocked, or soon, for the credit that is not given."""
        limits = self.limits
        return (
            2 * (self._taken - self._credited) >= limits.tokens
            or 2 * (self._uncredited_bytes + self._largest) >= limits.bytes
        )

    def _nothing(self) -> Exception:
        if self.closed:
            return ChannelClosed(f"channel '{self.name}' was closed here")
        if self._end is not None:
            why = f": {self._end}" if self._end else ""
            return ChannelClosed(f"channel '{self.name}' was closed by site '{self.peer}'{why}")
        return WouldBlock(f"channel '{self.name}' is empty: wait until it is ready")

    def close(self, reason: str = "") -> None:
        """Take no more; the sender is told."""
        if not self.closed:
            self.closed = True
            self._why = reason
            self._queue.clear()
            self._queued_bytes = 0
            self.refuse_more()

    def refuse_more(self) -> None:
        """Tell the sender that this end is closed."""
        self._post.say(BREAK, self.name, self.epoch, self._next, self._why)
        self._post.flush()

    def give_credit(self) -> None:
        """Say how many tokens were taken, where that is news."""
        if self._credited != self._taken:
            self.repeat_credit()

    def repeat_credit(self) -> None:
        """Say how many tokens were taken."""
        self._credited = self._taken
        self._uncredited_bytes = 0
        self._post.say(CREDIT, self.name, self.epoch, self._taken)

    # what the sender says

    def expects(self, number: int, end: bool = False) -> bool:
        """Whether this is the next token; what came before is dropped, and a gap asked for."""
        if number == self._next:
            if len(self._queue) >= self.limits.tokens and not end:
                raise RefusedMessage("over capacity")
            return True
        if number < self._next:
            self._duplicates += 1
        elif self._asked != self._next:
            self._asked = self._next
            self.probe()
        return False

    def accept(self, value: Any, clock: Clock | None, nbytes: int) -> None:
        """Take in the next token."""
        if clock is not None:
            self._clock = clock
        self._next += 1
        self._queued_bytes += nbytes
        if nbytes > self._largest:
            self._largest = nbytes
        self._queue.append(((value, self._clock), nbytes))

    def ended(self, reason: str) -> None:
        """The sender's last word, in a token's place."""
        self._next += 1
        self._end = reason
        self._take_end()

    def _take_end(self) -> None:
        """Nobody takes the end; it counts as taken once it is all that is left."""
        if not self._queue:
            self._taken = self._next
            self.give_credit()

    def asked(self, sent: int) -> None:
        """The sender has sent so many, and waits for credit."""
        self.repeat_credit()
        if sent > self._next:
            self.probe()
        self._post.flush()

    def probe(self) -> None:
        """Ask for the next token, which may be lost."""
        self._post.say(WANT, self.name, self.epoch, self._next)
        self._post.flush()

    def statistics(self) -> ChannelStatistics:
        """Counts so far."""
        return ChannelStatistics(
            lane=self.name,
            peer=self.peer,
            tokens=self._taken - (self._end is not None and not self._queue),
            bytes=self._bytes,
            queued=len(self._queue),
            queued_bytes=self._queued_bytes,
            waited_s=self.waited_s,
            resent=0,
            duplicates=self._duplicates,
        )
