"""Queues with one end here, and the other on another site."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from flowrl.channels import ChannelError, Receiver, Sender
from flowrl.runtime.remote.waiting import ChannelFailure, SiteWaits
from flowrl.runtime.streams import AwaitedQueue, Queue, Token
from flowrl.runtime.waits import Wait


class RemoteInput(AwaitedQueue):
    """A queue that another site fills. What lies in it is here; the rest is waited for."""

    def __init__(
        self, waiting: SiteWaits, receiver: Receiver, wait: Wait, tokens: Iterable[Token] = ()
    ) -> None:
        super().__init__(tokens)
        self._waiting, self.receiver, self.wait = waiting, receiver, wait

    def popleft(self) -> Token:
        """The next token, whenever it comes."""
        if not self._is_here():
            self.wait_until(self._is_here)
        return super().popleft() if super().__len__() else self._taken()

    def _taken(self) -> Token:
        try:
            return self.receiver.take()
        except ChannelError as error:
            raise ChannelFailure(error) from error

    def _is_here(self) -> bool:
        return super().__len__() > 0 or self.receiver.is_ready()

    def fill(self, tokens: int) -> None:
        while super().__len__() < tokens:
            self.wait_until(self.receiver.is_ready)
            super().append(self._taken())

    def relieve(self) -> None:
        """Whenever something comes, take it in: who gives it may be waited for, and must not wait in turn."""
        while len(self.receiver):
            super().append(self.receiver.take())

    def relieve_of_bytes(self, tokens: int) -> None:
        """The same for a lane that is full of bytes: what a round puts there must find room, however large it is."""
        while super().__len__() < tokens and len(self.receiver):
            if 2 * self.receiver.statistics().queued_bytes < self.receiver.limits.bytes:
                return
            super().append(self.receiver.take())

    def __len__(self) -> int:
        """Tokens that could be taken now."""
        return super().__len__() + len(self.receiver)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until what arrives here has brought this about; somebody else takes it."""
        try:
            self._waiting.until(condition, self.wait, self.receiver)
        except ChannelError as error:
            raise ChannelFailure(error) from error

    def arrived(self) -> Iterator[Token]:
        """The tokens that can be taken now, and are."""
        while len(self):
            yield self.popleft()


class RemoteOutput(deque[Token]):
    """A queue that another site empties."""

    def __init__(self, waiting: SiteWaits, sender: Sender, wait: Wait) -> None:
        super().__init__()
        self._waiting, self._sender, self._wait = waiting, sender, wait

    def append(self, token: Token) -> None:
        """Send a token, as soon as there is room."""
        sender = self._sender
        try:
            self._waiting.on(sender, self._wait)
            sender.send(*token)
        except ChannelError as error:
            raise ChannelFailure(error) from error


class LossyRemoteOutput(RemoteOutput):
    """The same where nobody waits for room: what finds none waits here, and the oldest is lost."""

    def __init__(self, waiting: SiteWaits, sender: Sender, wait: Wait, capacity: int) -> None:
        super().__init__(waiting, sender, wait)
        self._pending: deque[Token] = deque(maxlen=capacity)
        self.dropped = 0
        waiting.channels.on_receive(self._send)

    def append(self, token: Token) -> None:
        """Send a token, or keep it; without waiting."""
        if not self._sender.is_ready():
            self._waiting.channels.drain()  # there may be room by now
        self.dropped += len(self._pending) == self._pending.maxlen
        self._pending.append(token)
        self._send()

    def _send(self) -> None:
        try:
            while self._pending and self._sender.is_ready():
                self._sender.send(*self._pending.popleft())
        except ChannelError as error:
            raise ChannelFailure(error) from error


class MergedInput(AwaitedQueue):
    """Several queues as one: whatever is here first is taken first."""

    def __init__(self, waiting: SiteWaits, queues: list[Queue], wait: Wait) -> None:
        super().__init__()
        self._waiting, self._queues, self._wait = waiting, queues, wait

    def popleft(self) -> Token:
        """A token of any of them."""
        return super().popleft() if super().__len__() else self._first()

    def _first(self) -> Token:
        self._waiting.until(lambda: any(map(len, self._queues)), self._wait)
        return next(queue for queue in self._queues if len(queue)).popleft()

    def fill(self, tokens: int) -> None:
        while super().__len__() < tokens:
            super().append(self._first())

    def append(self, token: Token) -> None:
        """A token from this site goes into the first, which is its own."""
        self._queues[0].append(token)

    def __len__(self) -> int:
        """Tokens that could be taken now."""
        return super().__len__() + sum(map(len, self._queues))
