"""Calls across sites: a lane with requests and a lane with answers, so that a call, too, happens exactly once.

A site that waits for an answer serves the calls of others meanwhile; but a service that is at work, and waits for
a call of its own, begins no second one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flowrl.channels.errors import Broken, CallFailed, Closed
from flowrl.channels.exchange import Exchange
from flowrl.channels.receiver import Receiver
from flowrl.channels.sender import Sender
from flowrl.state import START, Clock

Serve = Callable[[str, tuple[Any, ...], Clock], tuple[Any, Clock]]


class Caller:
    """The calling end."""

    def __init__(self, exchange: Exchange, requests: Sender, answers: Receiver) -> None:
        self._exchange, self._requests, self._answers = exchange, requests, answers

    def __call__(
        self, method: str, *arguments: Any, deadline_s: float, clock: Clock = START
    ) -> tuple[Any, Clock]:
        """Call a method there; its answer, and the clock that it came with."""
        self._exchange.wait(self._requests, deadline_s)
        self._requests.send((method, *arguments), clock)
        return self.answer(method, deadline_s)

    def answer(self, method: str, deadline_s: float) -> tuple[Any, Clock]:
        """Wait for the answer to a request that was sent."""
        self._exchange.wait(self._answers, deadline_s)
        (worked, value), then = self._answers.take()
        if not worked:
            raise CallFailed(f"site '{self._answers.peer}', {method}: {value}")
        return value, then


class Desk:
    """The serving end: `serve` is called with each request, whenever its site looks at its mail."""

    def __init__(
        self, exchange: Exchange, requests: Receiver, answers: Sender, serve: Serve
    ) -> None:
        self._exchange, self._serve = exchange, serve
        self._requests, self._answers = requests, answers
        self._busy = False
        exchange.serve(self.work)

    def work(self) -> None:
        """Answer the requests that are here."""
        if self._busy:
            return
        self._busy = True
        try:
            while len(self._requests) and self._answers.ready():
                self._answer()
        finally:
            self._busy = False

    def _answer(self) -> None:
        (method, *arguments), clock = self._requests.take()
        try:
            value, then = self._serve(method, tuple(arguments), clock)
        except Exception as error:
            self._reply((False, f"{type(error).__name__}: {error}"), clock)
            self._exchange.flush()
            raise  # the failure is this site's: the caller only hears of it
        self._reply((True, value), then)

    def _reply(self, answer: tuple[bool, Any], clock: Clock) -> None:
        with suppress(Closed, Broken):  # the caller is gone, and needs none
            self._answers.send(answer, clock)
