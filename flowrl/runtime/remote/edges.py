"""Queues with one end on this site and the other end on another site."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from flowrl.channels import ChannelError, Receiver, Sender
from flowrl.runtime.interruptions import ChannelFailure
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.site_state import Wait
from flowrl.runtime.streams import AwaitedQueue, Queue, Token


class RemoteInput(AwaitedQueue):
    """A queue into which an instance on another site pushes.

    The instance takes tokens directly from the channel's receiver. The deque itself only holds tokens that had to leave
    the receiver early; these are taken first.
    """

    def __init__(
        self, waits: SiteWaits, receiver: Receiver, wait: Wait, tokens: Iterable[Token] = ()
    ) -> None:
        super().__init__(tokens)
        self._waits, self.receiver, self.wait = waits, receiver, wait

    def popleft(self) -> Token:
        if not self._has_token():
            self.wait_until(self._has_token)
        return super().popleft() if super().__len__() else self._receive()

    def _receive(self) -> Token:
        try:
            return self.receiver.take()
        except ChannelError as error:
            raise ChannelFailure(error) from error

    def _has_token(self) -> bool:
        return super().__len__() > 0 or self.receiver.is_ready()

    def fill(self, tokens: int) -> None:
        held = super().__len__
        while held() < tokens:
            # During a wait, tokens may be moved into the deque.
            self.wait_until(lambda: held() >= tokens or self.receiver.is_ready())
            if held() < tokens:
                super().append(self._receive())

    def empty_receiver(self) -> None:
        """Move all tokens into the deque, because the producer must not wait for room while this site waits for it."""
        while len(self.receiver):
            super().append(self.receiver.take())

    def hold_arrived(self) -> None:
        self.empty_receiver()

    def make_room(self, tokens: int) -> None:
        """Move up to `tokens` tokens into the deque while the receiver is half full of bytes.

        So one round's tokens always find room, however large they are.
        """
        while super().__len__() < tokens and len(self.receiver):
            if 2 * self.receiver.statistics().queued_bytes < self.receiver.limits.bytes:
                return
            super().append(self.receiver.take())

    def __len__(self) -> int:
        """Return how many tokens can be taken without waiting."""
        return super().__len__() + len(self.receiver)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until arriving tokens have made the condition true."""
        try:
            self._waits.until(condition, self.wait, self.receiver)
        except ChannelError as error:
            raise ChannelFailure(error) from error

    def take_arrived(self) -> Iterator[Token]:
        """Take all tokens that can be taken without waiting."""
        while len(self):
            yield self.popleft()


class RemoteOutput(deque[Token]):
    """A queue from which an instance on another site takes."""

    def __init__(self, waits: SiteWaits, sender: Sender, wait: Wait) -> None:
        super().__init__()
        self._waits, self._sender, self._wait = waits, sender, wait

    def append(self, token: Token) -> None:
        """Wait for room, and send a token."""
        sender = self._sender
        try:
            self._waits.until_ready(sender, self._wait)
            sender.send(*token)
        except ChannelError as error:
            raise ChannelFailure(error) from error


class LossyRemoteOutput(RemoteOutput):
    """A `RemoteOutput` that never waits. Tokens without room are pending, and the oldest of too many is dropped."""

    def __init__(self, waits: SiteWaits, sender: Sender, wait: Wait, capacity: int) -> None:
        super().__init__(waits, sender, wait)
        self._last: Token | None = None
        self._pending: deque[Token] = deque(maxlen=capacity)
        self.dropped = 0
        waits.channels.on_receive(self._send_pending)

    def append(self, token: Token) -> None:
        if not self._sender.is_ready():
            self._waits.channels.drain()  # credit may have arrived
        self.dropped += len(self._pending) == self._pending.maxlen
        self._pending.append(token)
        self._last = token
        self._send_pending()

    def send_last_again(self) -> None:
        """Send the last token again, because its receiver was started again and has no other."""
        if self._last is not None:
            self._pending.append(self._last)
            self._send_pending()

    def _send_pending(self) -> None:
        try:
            while self._pending and self._sender.is_ready():
                self._sender.send(*self._pending.popleft())
        except ChannelError as error:
            raise ChannelFailure(error) from error


class MergedInput(AwaitedQueue):
    """Several queues as one, from which tokens are taken in the order of arrival."""

    def __init__(self, waits: SiteWaits, queues: list[Queue], wait: Wait) -> None:
        super().__init__()
        self._waits, self._queues, self._wait = waits, queues, wait

    def popleft(self) -> Token:
        return super().popleft() if super().__len__() else self._take_first()

    def _take_first(self) -> Token:
        self._waits.until(lambda: any(map(len, self._queues)), self._wait)
        return next(queue for queue in self._queues if len(queue)).popleft()

    def fill(self, tokens: int) -> None:
        while super().__len__() < tokens:
            super().append(self._take_first())

    def hold_arrived(self) -> None:
        while any(map(len, self._queues)):
            super().append(self._take_first())

    def append(self, token: Token) -> None:
        """Push to the first queue, which is that of the producers on this site."""
        self._queues[0].append(token)

    def __len__(self) -> int:
        """Return how many tokens can be taken without waiting."""
        return super().__len__() + sum(map(len, self._queues))
