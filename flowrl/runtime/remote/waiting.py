"""The waits of a site. The time of each wait is charged to its reason, and no wait goes on beyond the cut."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

from flowrl.channels import ChannelError, Receiver, Sender, SiteChannels
from flowrl.graph.site_layout import COORDINATOR
from flowrl.runtime.interruptions import ChannelFailure
from flowrl.runtime.site_state import SiteState, Wait, WaitKind

WAIT_S = 7 * 86400.0  # long, because the coordinator notices if another site dies or is silent


class SiteWaits:
    """All waits of one site.

    `check` is a hook that is called before each wait for a token, for room or for a reply. It raises an exception if
    the wait is beyond the cut. `take_in` is a hook that is called before each wait, and in it when something arrives.
    """

    def __init__(self, channels: SiteChannels, site: SiteState) -> None:
        self.channels, self._site = channels, site
        self.check: Callable[[], None] = lambda: None
        self.take_in: Callable[[], None] = lambda: None
        self._idle: dict[WaitKind, Wait] = {}
        self._calls_being_answered = 0
        self._nested_s = 0.0  # waits within the current one, while a call is answered
        channels.on_receive(self._take_in_while_waiting)

    # reasons to wait

    def on_input(self, instance: str, edge: str, receiver: Receiver | None = None) -> Wait:
        """Return the wait for a token from an edge."""
        peer = "" if receiver is None else receiver.peer
        return self._new(Wait("waiting", instance, edge, peer, receiver))

    def on_output(self, instance: str, edge: str, sender: Sender) -> Wait:
        """Return the wait for room on an edge."""
        return self._new(Wait("blocked", instance, edge, sender.peer, sender))

    def on_firings(self, node: str, receiver: Receiver) -> Wait:
        """Return the wait for a notification that a node on another site has fired."""
        return self._new(Wait("waiting", "", f"{node}'s firings", receiver.peer))

    def on_notify(self, node: str, sender: Sender) -> Wait:
        """Return the wait for room to notify another site that a node has fired."""
        return self._new(Wait("blocked", node, f"{node}'s firings", sender.peer))

    def on_group(self, replica: str, instance: str, peer: str, kind: WaitKind) -> Wait:
        """Return the wait of an instance for what a replica of its group gives, or for room to give something."""
        return self._new(Wait(kind, instance, f"the group of {replica}", peer))

    def on_service(self, instance: str, link: str, peer: str) -> ServiceWait:
        """Return the wait for replies of a service on another site."""
        return ServiceWait(self, self._new(Wait("waiting", instance, link, peer)))

    def serving(self, instance: str) -> Callable[[], AbstractContextManager[None]]:
        """Return a context in which a service answers a call. The call belongs to a firing of its client."""
        wait = self._new(Wait("serving", instance))

        @contextmanager
        def serve() -> Iterator[None]:
            self._calls_being_answered += 1
            try:
                with self._timed(wait):
                    yield
            finally:
                self._calls_being_answered -= 1

        return serve

    @property
    def is_serving(self) -> bool:
        """Whether a call is being answered."""
        return self._calls_being_answered > 0

    def _new(self, wait: Wait) -> Wait:
        self._site.waits.append(wait)
        return wait

    # waiting

    def until_ready(self, channel: Sender | Receiver, wait: Wait) -> None:
        """Wait until a sender has room, or a receiver has a token."""
        if not channel.is_ready():
            self.check()
            with self._timed(wait):
                self.channels.wait(channel, WAIT_S)

    def until(
        self,
        condition: Callable[[], bool],
        wait: Wait,
        *receivers: Receiver,
        fds: Collection[int] = (),
    ) -> None:
        """Wait until the condition holds. Tokens at the receivers, or data at the descriptors, can make it true."""
        if not condition():
            self.check()
            with self._timed(wait), self.channels.connections.wake_on(fds):
                self.channels.wait_until(condition, receivers, WAIT_S)

    def until_coordinator(self, condition: Callable[[], bool], kind: WaitKind = "idle") -> None:
        """Wait until a message of the coordinator has made the condition true."""
        if kind not in self._idle:
            self._idle[kind] = self._new(Wait(kind, peer=COORDINATOR))
        with self._timed(self._idle[kind]):
            self.channels.wait_until(condition, (), WAIT_S)

    def _take_in_while_waiting(self) -> None:
        if self._site.waiting is not None:
            self.take_in()

    @contextmanager
    def _timed(self, wait: Wait) -> Iterator[None]:
        """Show the wait in the site's state, and subtract its time from the time of the firing."""
        site, start_s = self._site, time.perf_counter()
        outer, before_s = site.waiting, self._nested_s
        site.waiting, self._nested_s = (wait, start_s), 0.0
        try:
            self.take_in()
            yield
        finally:
            whole_s = time.perf_counter() - start_s
            wait.waited_s += whole_s - self._nested_s
            wait.count += 1
            self._nested_s = before_s + whole_s
            if outer is None:
                site.last_fired_s += whole_s
                self._nested_s = 0.0
            site.waiting = outer


class ServiceWait:
    """Waits for the replies of a service on another site. A broken channel ends the site, not just the firing."""

    def __init__(self, waits: SiteWaits, wait: Wait) -> None:
        self._waits, self._wait = waits, wait

    def __call__(self, channel: Sender | Receiver) -> None:
        """Wait until a sender has room, or a receiver has a reply."""
        with _as_channel_failure():
            self._waits.until_ready(channel, self._wait)

    def drain(self) -> None:
        """Receive what has arrived, without waiting."""
        with _as_channel_failure():
            self._waits.channels.drain()

    def until(
        self, condition: Callable[[], bool], receivers: Collection[Receiver], fds: Collection[int]
    ) -> None:
        """Wait until the condition holds. Replies, or data at the descriptors, can make it true."""
        with _as_channel_failure():
            self._waits.until(condition, self._wait, *receivers, fds=fds)


@contextmanager
def _as_channel_failure() -> Iterator[None]:
    try:
        yield
    except ChannelError as error:
        raise ChannelFailure(error) from error
