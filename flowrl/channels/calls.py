"""Calls across sites: a lane with requests and a lane with answers, so that a call, too, happens exactly once.

A site that waits for an answer serves the calls of others meanwhile; but a service that is at work, and waits for
a call of its own, begins no second one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flowrl.channels.errors import ChannelBroken, ChannelClosed, UnsendableValue
from flowrl.channels.receiver import Receiver
from flowrl.channels.sender import Sender
from flowrl.channels.site_channels import Channel, SiteChannels

Wait = Callable[[Channel], None]  # until the lane is ready
Serve = Callable[[Any], Any]  # a request's answer
Failed = Callable[[UnsendableValue], Any]  # the answer where the answer cannot be sent


class CallClient:
    """The calling end."""

    def __init__(self, requests: Sender, answers: Receiver, wait: Wait) -> None:
        self._requests, self._wait = requests, wait
        self.answers = answers
        self._number = 0
        self._got: tuple[int, Any] = 0, None  # the last answer, and of which call

    def __call__(self, request: Any) -> Any:
        """Ask, and wait for the answer."""
        return self.answer(self.begin(request))

    def begin(self, request: Any) -> int:
        """Ask; the call's number. An earlier call that has no answer yet is given up."""
        self._number += 1
        self._wait(self._requests)
        self._requests.send((self._number, request))
        return self._number

    def answered(self, number: int) -> bool:
        """Whether the answer is here; or it is known that none will come, which `answer` says."""
        while self._got[0] != number and len(self.answers):
            self._got = self.answers.take()[0]
        return self._got[0] == number or self.answers.is_ready()

    def answer(self, number: int) -> Any:
        """Wait for it; a call that was given up may be answered first."""
        while self._got[0] != number:
            self._wait(self.answers)
            self._got = self.answers.take()[0]
        (_, answer), self._got = self._got, (0, None)
        return answer


class CallServer:
    """The serving end: `serve` is called with each request, whenever its site looks at its mail."""

    def __init__(
        self,
        channels: SiteChannels,
        requests: Receiver,
        answers: Sender,
        serve: Serve,
        failed: Failed,
    ) -> None:
        self._channels, self._serve, self._failed = channels, serve, failed
        self._requests, self._answers = requests, answers
        self._busy = False
        channels.on_receive(self.work)

    def work(self) -> None:
        """Answer the requests that are here."""
        if self._busy or not len(self._requests):
            return
        self._busy = True
        try:
            while len(self._requests) and self._answers.is_ready():
                number, request = self._requests.take()[0]
                self._reply(number, self._serve(request))
        finally:
            self._busy = False
        self._channels.flush()

    def _reply(self, number: int, answer: Any) -> None:
        with suppress(ChannelClosed, ChannelBroken):  # the caller is gone, and needs none
            try:
                self._answers.send((number, answer))
            except UnsendableValue as error:
                self._answers.send((number, self._failed(error)))
