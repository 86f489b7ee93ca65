"""Where a site's mail arrives: a queue that other threads fill, and what wakes the site that waits for it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from flowrl.channels.items import GIVEN, Item, size_bytes
from flowrl.channels.statistics import ConnectionTraffic
from flowrl.core.state import Clock


class Inbox:
    """Mail from threads of this process, in order; a pipe's end that is readable while a sleeper should wake."""

    def __init__(self) -> None:
        self.wake_fd, self._write_fd = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._write_fd, False)
        self._mail: deque[tuple[str, Item]] = deque()
        self._sleeping = self._rung = self._closed = False
        self._bell = threading.Lock()  # so that nobody rings what was closed

    def put(self, sender: str, item: Item) -> None:
        """Leave an item (from any thread)."""
        self._mail.append((sender, item))
        if self._sleeping:
            self._ring()

    def _ring(self) -> None:
        with self._bell:
            if self._sleeping and not self._closed:
                self._sleeping, self._rung = False, True
                os.write(self._write_fd, b"\0")

    def falls_asleep(self) -> bool:
        """Whether the owner may wait now: nothing is here, and whoever comes will wake it."""
        self._sleeping = True  # first this, then the look: whoever comes after the look sees it
        return not self._mail

    def take(self) -> list[tuple[str, Item]]:
        """All that is here."""
        self._sleeping = False
        if self._rung:
            with self._bell:
                os.read(self.wake_fd, 64)
                self._rung = False
        mail = self._mail
        return [mail.popleft() for _ in range(len(mail))]

    def close(self) -> None:
        """Nobody is woken any more."""
        with self._bell:
            self._closed = True
            os.close(self.wake_fd)
            os.close(self._write_fd)


class Given:
    """A token for a thread, ready to be posted."""

    __slots__ = ("item", "nbytes")

    def __init__(self, item: Item, nbytes: int) -> None:
        self.item, self.nbytes = item, nbytes


class ThreadPost:
    """The way to a site in this process: by reference."""

    def __init__(self, me: str, inbox: Inbox) -> None:
        self._me, self._inbox = me, inbox
        self._owed: list[Callable[[], None]] = []

    def pack(self, lane: str, epoch: int, number: int, clock: Clock | None, value: Any) -> Given:
        """Make a token ready."""
        nbytes = size_bytes(value)
        return Given([GIVEN, lane, epoch, number, clock, value, nbytes], nbytes)

    def end(self, *item: Any) -> Given:
        """Make the end of a lane ready."""
        return Given(list(item), 0)

    def put(self, parcel: Given) -> None:
        """Post it."""
        self._inbox.put(self._me, parcel.item)

    def say(self, *item: Any) -> None:
        """Post a small item."""
        self._inbox.put(self._me, list(item))

    def owe(self, credit: Callable[[], None]) -> None:
        """Call `credit` when credits are settled."""
        self._owed.append(credit)

    def discard(self, parcel: Given) -> None:
        """Nothing to give back."""

    def flush(self) -> None:
        """Nothing was gathered."""

    def settle(self) -> None:
        """Give the credits that are owed."""
        if self._owed:
            owed, self._owed = self._owed, []
            for credit in owed:
                credit()

    def close(self, drop: bool = False) -> None:
        """Nothing is held."""

    def statistics(self) -> ConnectionTraffic:
        """Nothing is counted."""
        return ConnectionTraffic()
