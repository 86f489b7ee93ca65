"""A channel: one direction of one edge, with a sender on one site and a receiver on another.

Both ends share sequence numbers and nothing else. The sender numbers its tokens and keeps each one until the
receiver's credit acknowledges it. So the sender can resend tokens that a broken connection lost, and it limits the
tokens in flight. The receiver accepts only the next sequence number: it drops duplicates, and requests a resend at a
gap. It sends credit, the number of tokens taken, when half of the channel's limits is used up, and before its site
waits.

If one of the two sites is started again, both ends begin anew in the next epoch, with the sequence number 0.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Any

from flowrl.channels.codec import IncomingPayload
from flowrl.channels.errors import ChannelBroken, ChannelClosed, RefusedMessage, WouldBlock
from flowrl.channels.messages import (
    CREDIT,
    CREDIT_REQUEST,
    END,
    RECEIVER_CLOSED,
    RESEND,
    CompressedPayload,
)
from flowrl.channels.transport import ChannelLimits, ChannelStatistics, Connection, PackedFrame
from flowrl.channels.wire_format import AS_IT_IS, WireFormat
from flowrl.core.state import EMPTY_CLOCK, Clock

Token = tuple[Any, Clock]

# Of the size of the largest token: for so many bytes, a receiver that waits is patient for one more probe (half a
# second) before it requests a token again, which may still be on its way over a slow network.
BYTES_OF_PROBE = 1 << 19
MOST_PROBES = 20  # between two requests for a token, where tokens are small: ten seconds


class Sender:
    """The end of a channel that sends tokens."""

    def __init__(
        self,
        name: str,
        peer: str,
        epoch: int,
        limits: ChannelLimits,
        connection: Connection[Any],
        wire: WireFormat = AS_IT_IS,
    ) -> None:
        self.name, self.peer, self.epoch, self.limits = name, peer, epoch, limits
        self.waited_s = 0.0
        self.send_error: Exception | None = None  # why nothing can be sent any more
        self._connection = connection
        self._kept: deque[PackedFrame] = deque()
        self._kept_bytes = 0
        self._largest = 0
        self._next = 0  # the next token's sequence number
        self._taken = 0  # tokens that credit has acknowledged
        self._clock: Clock | None = None
        self._bytes = self._resent = self._wire_bytes = 0
        self._wire = wire
        self._earlier_tokens = 0  # sent in earlier epochs
        self.lost = 0  # of these, tokens that no credit has acknowledged

    def begin_anew(self, epoch: int, connection: Connection[Any]) -> None:
        """Send from now on to a receiver that was started again. It gets nothing of what was sent before."""
        before = self.statistics()
        self._earlier_tokens, self.lost = before.tokens, self.lost + before.queued
        self.epoch, self._connection, self.send_error = epoch, connection, None
        self._kept.clear()
        self._kept_bytes = self._next = self._taken = 0
        self._clock = None

    def is_ready(self) -> bool:
        """Return whether `send` will not block: there is room, or it will raise why there never will be."""
        if not self._kept or self.send_error:
            return True
        return self._has_room_for(self._largest)

    def _has_room_for(self, nbytes: int) -> bool:
        limits = self.limits
        return len(self._kept) < limits.tokens and self._kept_bytes + nbytes <= limits.bytes

    @property
    def all_taken(self) -> bool:
        return not self._kept

    def send(self, value: Any, clock: Clock = EMPTY_CLOCK) -> None:
        """Send a token, which must not change any more."""
        if self.send_error:
            raise self.send_error
        is_ready = self.is_ready()
        same = clock is self._clock
        connection = self._connection
        packed = connection.pack_token(
            self.name, self.epoch, self._next, None if same else clock, value, self._wire
        )
        if not is_ready and not self._has_room_for(packed.nbytes):  # it may be smaller than others
            packed.release()
            raise WouldBlock(f"channel '{self.name}' is full: wait until it is ready")
        self._clock = clock
        self._keep(packed)
        if self._wire is not AS_IT_IS:
            self._wire_bytes += packed.wire_bytes
        connection.send(packed)

    def close(self, reason: str = "") -> None:
        """Send no more tokens. Those already sent still arrive, and then the receiver learns of the end."""
        if not self.send_error:
            self.send_error = ChannelClosed(f"channel '{self.name}' was closed on this site")
            packed = self._connection.pack_frame(END, self.name, self.epoch, self._next, reason)
            self._keep(packed)
            self._connection.send(packed)

    def _keep(self, packed: PackedFrame) -> None:
        nbytes = packed.nbytes
        self._next += 1
        self._bytes += nbytes
        self._kept_bytes += nbytes
        self._kept.append(packed)
        if nbytes > self._largest:
            self._largest = nbytes

    def on_credit(self, taken: int) -> None:
        """Handle credit: the receiver has taken this number of tokens in all."""
        if taken > self._next:
            raise RefusedMessage("credit")
        while self._taken < taken:
            self._kept_bytes -= self._kept.popleft().nbytes
            self._taken += 1

    @property
    def sent(self) -> int:
        """How many tokens were sent since the channel began, perhaps anew."""
        return self._next

    def on_resend_request(self, number: int) -> None:
        """Resend the tokens from this sequence number on, which the receiver has not seen."""
        if not 0 <= number <= self._next:
            raise RefusedMessage("resend request")
        for packed in self._kept_from(number):
            self._resent += 1
            self._connection.send(packed)
        self._connection.flush()

    def on_receiver_closed(self, number: int, reason: str) -> None:
        """Handle that the receiver has closed, after it received `number` tokens."""
        for packed in self._kept_from(number):
            packed.release()
        self._kept.clear()
        self._kept_bytes = 0
        self._taken = self._next
        if self.send_error is None:
            why = f": {reason}" if reason else ""
            self.send_error = ChannelBroken(
                f"channel '{self.name}' was closed by its receiver, site '{self.peer}'{why}"
            )

    def _kept_from(self, number: int) -> list[PackedFrame]:
        return list(islice(self._kept, max(number - self._taken, 0), None))

    def probe(self) -> None:
        """Request the credit again, as it may be lost."""
        self._connection.send_frame(CREDIT_REQUEST, self.name, self.epoch, self._next)

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            channel=self.name,
            peer=self.peer,
            tokens=self._earlier_tokens + self._next - isinstance(self.send_error, ChannelClosed),
            bytes=self._bytes,
            wire_bytes=None if self._wire is AS_IT_IS else self._wire_bytes,
            queued=len(self._kept),
            queued_bytes=self._kept_bytes,
            waited_s=self.waited_s,
            resent=self._resent,
            duplicates=0,
        )


class Receiver:
    """The end of a channel that takes tokens."""

    def __init__(
        self,
        name: str,
        peer: str,
        epoch: int,
        limits: ChannelLimits,
        connection: Connection[Any],
        wire: WireFormat = AS_IT_IS,
    ) -> None:
        self.name, self.peer, self.epoch, self.limits = name, peer, epoch, limits
        self.waited_s = 0.0
        self.closed = False  # on this site
        self._close_reason = ""
        self._connection, self._wire = connection, wire
        self._queue: deque[tuple[Token, int]] = deque()
        self._queued_bytes = 0
        self._end_reason: str | None = None  # None: the sender has not closed the channel
        self._next = 0  # the sequence number that is accepted next
        self._taken = self._credited = 0
        self._uncredited_bytes = self._largest = 0
        self._requested_gap = -1  # the sequence number whose resend was requested last
        self._probes = 0  # since the last token arrived
        self._next_request = 1  # at which probe the next token is requested
        self._early_factor = 1  # doubled when a token was requested that was only late
        self._awaits_answer = False  # to a request of a token
        self._clock = EMPTY_CLOCK
        self._bytes = self._duplicates = 0
        self._earlier_tokens = 0  # taken in earlier epochs

    def begin_anew(self, epoch: int, connection: Connection[Any]) -> None:
        """Receive from now on from a sender that was started again. Tokens that were not taken are discarded."""
        self._earlier_tokens = self.statistics().tokens
        self.epoch, self._connection, self._end_reason = epoch, connection, None
        self._queue.clear()
        self._queued_bytes = self._next = self._taken = self._credited = self._uncredited_bytes = 0
        self._requested_gap = -1
        self._probes, self._awaits_answer = 0, False
        self._clock = EMPTY_CLOCK

    def is_ready(self) -> bool:
        """Return whether `take` will not block: a token is queued, or it will raise why none will come."""
        return bool(self._queue) or self._end_reason is not None or self.closed

    def __len__(self) -> int:
        """Return the number of queued tokens."""
        return len(self._queue)

    @property
    def ended(self) -> bool:
        """Whether the sender has closed the channel; tokens may still be queued."""
        return self._end_reason is not None

    @property
    def arrived(self) -> int:
        """How many tokens have arrived since the channel began, perhaps anew."""
        return self._next

    def take(self) -> Token:
        if not self._queue:
            raise self._empty_error()
        token, nbytes = self._queue.popleft()
        if self._taken == self._credited:
            self._connection.defer_credit(self.send_credit)
        self._taken += 1
        self._bytes += nbytes
        self._queued_bytes -= nbytes
        self._uncredited_bytes += nbytes
        if self._end_reason is not None:
            self._take_end()
        if self._credit_is_urgent():
            self.send_credit()
        return token

    def _credit_is_urgent(self) -> bool:
        """Return whether the missing credit blocks the sender, or may soon do so."""
        limits = self.limits
        return (
            2 * (self._taken - self._credited) >= limits.tokens
            or 2 * (self._uncredited_bytes + self._largest) >= limits.bytes
        )

    def _empty_error(self) -> Exception:
        if self.closed:
            return ChannelClosed(f"channel '{self.name}' was closed on this site")
        if self._end_reason is not None:
            why = f": {self._end_reason}" if self._end_reason else ""
            return ChannelClosed(
                f"channel '{self.name}' was closed by its sender, site '{self.peer}'{why}"
            )
        return WouldBlock(f"channel '{self.name}' is empty: wait until it is ready")

    def close(self, reason: str = "") -> None:
        """Discard the queued tokens, take no more, and notify the sender."""
        if not self.closed:
            self.closed = True
            self._close_reason = reason
            self._queue.clear()
            self._queued_bytes = 0
            self.notify_closed()

    def notify_closed(self) -> None:
        self._connection.send_frame(
            RECEIVER_CLOSED, self.name, self.epoch, self._next, self._close_reason
        )
        self._connection.flush()

    def send_credit(self) -> None:
        """Send credit, unless the sender has it already."""
        if self._credited != self._taken:
            self.repeat_credit()

    def repeat_credit(self) -> None:
        self._credited = self._taken
        self._uncredited_bytes = 0
        self._connection.send_frame(CREDIT, self.name, self.epoch, self._taken)

    def accepts(self, number: int, end: bool = False) -> bool:
        """Return whether this is the next sequence number; count a duplicate, and request a resend at a gap."""
        if number == self._next:
            if len(self._queue) >= self.limits.tokens and not end:
                raise RefusedMessage("over capacity")
            return True
        if number < self._next:
            self._duplicates += 1
            if self._awaits_answer:  # the token had been on its way
                self._awaits_answer, self._early_factor = False, 2 * self._early_factor
        elif self._requested_gap != self._next:
            self._requested_gap = self._next
            self._request_next()
        return False

    def decompress(self, payload: CompressedPayload) -> IncomingPayload:
        """Decompress the payload of the next token, as far as the channel's limits leave memory for it.

        What a sender keeps is not beyond the limit before it sends another token.
        """
        if self._wire.compression is None:
            raise RefusedMessage("compressed")
        if self._queued_bytes > self.limits.bytes:
            raise RefusedMessage("over capacity")
        return payload.decompress(self._wire.compression)

    def on_token(self, value: Any, clock: Clock | None, nbytes: int) -> None:
        """Queue the next token."""
        if clock is not None:
            self._clock = clock
        self._next += 1
        self._queued_bytes += nbytes
        if nbytes > self._largest:
            self._largest = nbytes
        self._queue.append(((value, self._clock), nbytes))
        self._probes = 0

    def on_end(self, reason: str) -> None:
        """Handle that the sender has closed the channel. The end has a sequence number like a token."""
        self._next += 1
        self._end_reason = reason
        self._take_end()

    def _take_end(self) -> None:
        """Acknowledge the end once the queue is empty, since `take` never returns it."""
        if not self._queue:
            self._taken = self._next
            self.send_credit()

    def on_credit_request(self, sent: int) -> None:
        """Handle a credit request of the sender, which has sent this number of tokens."""
        self.repeat_credit()
        if sent > self._next:
            self.probe()
        self._connection.flush()

    def probe(self) -> None:
        """Request the next token again, as it may be lost. It may also be large, and on its way.

        So it is requested after a time that is long enough for the largest one so far, and then less and less often, up
        to a limit: on a network that takes long for a token, each copy would delay the next ones. Where a token arrived
        after it had been requested, and once more, later ones are requested after twice the time.
        """
        patience = 1 + self._largest // BYTES_OF_PROBE
        patience = max(min(self._early_factor * patience, MOST_PROBES), patience)
        if not self._probes:
            self._next_request = patience
        self._probes += 1
        if self._probes >= self._next_request:
            self._next_request += max(min(self._probes, MOST_PROBES), patience)
            self._request_next()

    def _request_next(self) -> None:
        self._awaits_answer = True
        self._connection.send_frame(RESEND, self.name, self.epoch, self._next)
        self._connection.flush()

    def statistics(self) -> ChannelStatistics:
        return ChannelStatistics(
            channel=self.name,
            peer=self.peer,
            tokens=self._earlier_tokens
            + self._taken
            - (self._end_reason is not None and not self._queue),
            bytes=self._bytes,
            wire_bytes=None,
            queued=len(self._queue),
            queued_bytes=self._queued_bytes,
            waited_s=self.waited_s,
            resent=0,
            duplicates=self._duplicates,
        )
