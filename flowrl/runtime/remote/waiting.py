"""How a site waits: never for what comes after the cut, and every second is put down to what was waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

from flowrl.channels import ChannelError, Receiver, Sender, SiteChannels
from flowrl.graph.site_layout import COORDINATOR
from flowrl.runtime.instance import SiteState
from flowrl.runtime.waits import Kind, Wait

WAIT_S = 7 * 86400.0  # another site's firing may take long; whether it lives, the coordinator knows


class ChannelFailure(BaseException):
    """A lane ended under a firing: not the firing's fault, and not to be caught as one."""

    def __init__(self, error: ChannelError) -> None:
        self.error = error
        super().__init__(str(error))


class SiteWaits:
    """All waits of one site."""

    def __init__(self, channels: SiteChannels, site: SiteState) -> None:
        self.channels, self._site = channels, site
        self.check: Callable[[], None] = lambda: None  # raises where the site has gone far enough
        self._idle: dict[Kind, Wait] = {}
        self._served = 0  # calls that are being answered
        self._within_s = 0.0  # waits within the one that goes on: a call is answered in it

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

    def calling(self, who: str, link: str, peer: str) -> ServiceWait:
        """How a client waits for its service elsewhere."""
        return ServiceWait(self, self._new(Wait("waiting", who, link, peer)))

    def as_service(self, who: str) -> Callable[[], AbstractContextManager[None]]:
        """Meanwhile a call is answered, and what that waits for is not beyond the cut."""
        wait = self._new(Wait("serving", who))

        @contextmanager
        def serving() -> Iterator[None]:
            self._served += 1
            try:
                with self._told(wait):
                    yield
            finally:
                self._served -= 1

        return serving

    @property
    def serves(self) -> bool:
        """Whether a call is being answered."""
        return self._served > 0

    def _new(self, wait: Wait) -> Wait:
        self._site.waits.append(wait)
        return wait

    # waiting

    def on(self, lane: Sender | Receiver, wait: Wait) -> None:
        """Until a lane is ready."""
        if not lane.is_ready():
            self.check()
            with self._told(wait):
                self.channels.wait(lane, WAIT_S)

    def until(
        self,
        condition: Callable[[], bool],
        wait: Wait,
        *lanes: Receiver,
        fds: Collection[int] = (),
    ) -> None:
        """Until some of these lanes, or who writes to these descriptors, have brought this about."""
        if not condition():
            self.check()
            with self._told(wait), self.channels.connections.wake_on(fds):
                self.channels.wait_until(condition, lanes, WAIT_S)

    def idle(self, condition: Callable[[], bool], kind: Kind = "idle") -> None:
        """Until the coordinator has brought this about."""
        if kind not in self._idle:
            self._idle[kind] = self._new(Wait(kind, peer=COORDINATOR))
        with self._told(self._idle[kind]):
            self.channels.wait_until(condition, (), WAIT_S)

    @contextmanager
    def _told(self, wait: Wait) -> Iterator[None]:
        """What is waited for can be seen meanwhile; the next firing's time begins that much later."""
        site, began_s = self._site, time.perf_counter()
        outer, before_s = site.waiting, self._within_s
        site.waiting, self._within_s = (wait, began_s), 0.0
        try:
            yield
        finally:
            whole_s = time.perf_counter() - began_s
            wait.s += whole_s - self._within_s
            wait.times += 1
            self._within_s = before_s + whole_s
            if outer is None:
                site.last_fired_s += whole_s
                self._within_s = 0.0
            site.waiting = outer


class ServiceWait:
    """How one client waits for its service elsewhere: the lanes end with the call."""

    def __init__(self, waiting: SiteWaits, wait: Wait) -> None:
        self._waiting, self._wait = waiting, wait

    def __call__(self, lane: Sender | Receiver) -> None:
        """Until a lane is ready."""
        with _elsewhere():
            self._waiting.on(lane, self._wait)

    def look(self) -> None:
        """Take in what has come, without waiting."""
        with _elsewhere():
            self._waiting.channels.drain()

    def until(
        self, condition: Callable[[], bool], lanes: Collection[Receiver], fds: Collection[int]
    ) -> None:
        """Until answers, or who writes to these descriptors, have brought this about."""
        with _elsewhere():
            self._waiting.until(condition, self._wait, *lanes, fds=fds)


@contextmanager
def _elsewhere() -> Iterator[None]:
    try:
        yield
    except ChannelError as error:
        raise ChannelFailure(error) from error
