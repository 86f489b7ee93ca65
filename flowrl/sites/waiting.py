"""How a site waits: never for what comes after the cut, and every second is put down to what was waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flowrl.channels import Exchange, Receiver, Sender
from flowrl.engine.runner import Site
from flowrl.engine.waits import Kind, Wait
from flowrl.sites.layout import COORDINATOR

WAIT_S = 7 * 86400.0  # another site's firing may take long; whether it lives, the coordinator knows


class Waiting:
    """All waits of one site."""

    def __init__(self, exchange: Exchange, site: Site) -> None:
        self.exchange, self._site = exchange, site
        self.check: Callable[[], None] = lambda: None  # raises where the site has gone far enough
        self._idle: dict[Kind, Wait] = {}

    # what may be waited for

    def on_input(self, who: str, edge: str, receiver: Receiver | None = None) -> Wait:
        """An instance may wait for an edge to bring something."""
        peer = receiver.peer if receiver else ""
        return self._new(Wait("waiting", who, edge, peer, receiver))

    def on_output(self, who: str, edge: str, sender: Sender) -> Wait:
        """An instance may wait for an edge to have room."""
        return self._new(Wait("blocked", who, edge, sender.peer, sender))

    def on_turns(self, node: str, receiver: Receiver) -> Wait:
        """The site may wait to hear whether a node elsewhere fires in its turn; no tokens flow there."""
        return self._new(Wait("waiting", "", f"{node}'s turns", receiver.peer))

    def on_telling(self, node: str, sender: Sender) -> Wait:
        """A node may wait for room to tell others of its turns."""
        return self._new(Wait("blocked", node, f"{node}'s turns", sender.peer))

    def _new(self, wait: Wait) -> Wait:
        self._site.waits.append(wait)
        return wait

    # waiting

    def on(self, lane: Sender | Receiver, wait: Wait) -> None:
        """Until a lane is ready."""
        if not lane.ready():
            self.check()
            with self._told(wait):
                self.exchange.wait(lane, WAIT_S)

    def until(self, condition: Callable[[], bool], wait: Wait) -> None:
        """Until some lane has brought this about."""
        if not condition():
            self.check()
            with self._told(wait):
                self.exchange.wait_until(condition, (), WAIT_S)

    def idle(self, condition: Callable[[], bool], kind: Kind = "idle") -> None:
        """Until the coordinator has brought this about."""
        if kind not in self._idle:
            self._idle[kind] = self._new(Wait(kind, peer=COORDINATOR))
        with self._told(self._idle[kind]):
            self.exchange.wait_until(condition, (), WAIT_S)

    @contextmanager
    def _told(self, wait: Wait) -> Iterator[None]:
        """What is waited for can be seen meanwhile; the next firing's time begins that much later."""
        site, began_s = self._site, time.perf_counter()
        site.waiting = (wait, began_s)
        try:
            yield
        finally:
            waited_s = time.perf_counter() - began_s
            wait.s += waited_s
            site.last_s += waited_s
            site.waiting = None
