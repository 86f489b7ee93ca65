"""Calls across sites: a channel of requests and a channel of replies. So each call happens exactly once.

A site that waits for a reply serves the calls of others meanwhile. A server that is busy, because its service waits
for a call of its own, does not start a second one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flowrl.channels.channel import Receiver, Sender
from flowrl.channels.errors import ChannelBroken, ChannelClosed, UnsendableValue
from flowrl.channels.site_channels import Channel, SiteChannels

WaitUntilReady = Callable[[Channel], None]
# Returns the reply to a request.
Handle = Callable[[Any], Any]
# Returns the reply in place of one that cannot be sent.
HandleUnsendable = Callable[[UnsendableValue], Any]


class CallClient:
    """The calling end of a service."""

    def __init__(self, requests: Sender, replies: Receiver, wait: WaitUntilReady) -> None:
        self._requests, self._wait = requests, wait
        self.replies = replies
        self._number = 0
        self._last_reply: tuple[int, Any] = 0, None  # the number of a call and its reply

    def __call__(self, request: Any) -> Any:
        """Send a request, and wait for the reply."""
        return self.wait_for_reply(self.begin(request))

    def begin(self, request: Any) -> int:
        """Send a request, and return the call's number. An earlier call that still waits for its reply is abandoned."""
        self._number += 1
        self._wait(self._requests)
        self._requests.send((self._number, request))
        return self._number

    def has_reply(self, number: int) -> bool:
        """Return whether `wait_for_reply` will not block: the reply has arrived, or it is known that none will."""
        while self._last_reply[0] != number and len(self.replies):
            self._last_reply = self.replies.take()[0]
        return self._last_reply[0] == number or self.replies.is_ready()

    def wait_for_reply(self, number: int) -> Any:
        """Return the reply to a call; replies to abandoned calls are skipped."""
        while self._last_reply[0] != number:
            self._wait(self.replies)
            self._last_reply = self.replies.take()[0]
        (_, reply), self._last_reply = self._last_reply, (0, None)
        return reply


class CallServer:
    """The serving end of a service. It calls `handle` with each request, when its site processes received frames."""

    def __init__(
        self,
        channels: SiteChannels,
        requests: Receiver,
        replies: Sender,
        handle: Handle,
        handle_unsendable: HandleUnsendable,
    ) -> None:
        self._channels = channels
        self._handle, self._handle_unsendable = handle, handle_unsendable
        self._requests, self._replies = requests, replies
        self._busy = False
        channels.on_receive(self.serve_pending)

    def serve_pending(self) -> None:
        """Reply to the requests that have arrived."""
        if self._busy or not len(self._requests):
            return
        self._busy = True
        try:
            while len(self._requests) and self._replies.is_ready():
                number, request = self._requests.take()[0]
                self._send_reply(number, self._handle(request))
        finally:
            self._busy = False
        self._channels.flush()

    def _send_reply(self, number: int, reply: Any) -> None:
        with suppress(ChannelClosed, ChannelBroken):  # a client that has closed needs no reply
            try:
                self._replies.send((number, reply))
            except UnsendableValue as error:
                self._replies.send((number, self._handle_unsendable(error)))
