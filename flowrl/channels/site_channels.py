"""The exchange: a site's mailbox with all its lanes. Whatever waits, waits here.

While one lane is waited for, all are served: tokens are taken in, credits counted, what was lost is asked for. Every
wait has a deadline, and knows whether the sites that it waits for are alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from flowrl.channels.decode import decode, read_clock
from flowrl.channels.errors import PeerLost, RefusedMessage, WaitTimeout
from flowrl.channels.items import ASIDE, ASK, BREAK, CREDIT, END, GIVEN, TOKEN, WANT, Item
from flowrl.channels.message import Lazy
from flowrl.channels.receiver import Receiver
from flowrl.channels.sender import Sender
from flowrl.channels.site_connections import SiteConnections
from flowrl.channels.transport import ChannelLimits

Channel = Sender | Receiver
FindFailure = Callable[[str], str | None]  # a site's name: why it is dead, or None

BOUND = ChannelLimits()
LOOK_S = 0.2  # how often a wait looks whether its peers are alive
NUDGE_S = 0.5  # a wait without progress asks again for what may be lost
CREDIT_S = 1e-3  # credits that nobody is blocked for wait for a message to go with, but not longer
DRAIN_POLLS = 64  # so that a fast sender does not hold up the site
LAST_WORDS_S = 0.05  # a dead site's mail may still be on its way


class SiteChannels:
    """Owned by one thread."""

    def __init__(
        self, connections: SiteConnections, alive: FindFailure = lambda peer: None
    ) -> None:
        self.connections = connections
        self._alive = alive
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[str, Receiver] = {}
        self._served: list[Callable[[], None]] = []
        self.on_out_of_band: Callable[[str, str], None] = _no_asides

    def open_sender(
        self, name: str, peer: str, epoch: int = 0, limits: ChannelLimits = BOUND
    ) -> Sender:
        """Open the giving end of a lane; of an older epoch's lane nothing more is heard."""
        sender = Sender(name, peer, epoch, limits, self.connections.posts[peer])
        self._senders[name] = sender
        return sender

    def open_receiver(
        self, name: str, peer: str, epoch: int = 0, limits: ChannelLimits = BOUND
    ) -> Receiver:
        """Open the taking end of a lane; `limits` is the sender's."""
        receiver = Receiver(name, peer, epoch, limits, self.connections.posts[peer])
        self._receivers[name] = receiver
        return receiver

    def on_receive(self, work: Callable[[], None]) -> None:
        """Call `work` whenever mail came, so that calls are answered while this site waits."""
        self._served.append(work)

    # waiting

    def wait(self, lane: Channel, deadline_s: float) -> None:
        """Until the lane is ready; then `take` or `send` does not block."""
        if not lane.is_ready():
            self.wait_until(lane.is_ready, (lane,), deadline_s)

    def wait_until(
        self, condition: Callable[[], bool], lanes: Iterable[Channel], deadline_s: float
    ) -> None:
        """Until the condition holds, which these lanes may bring about; `PeerLost`, `Late`."""
        if condition():
            return
        began = time.perf_counter()
        waiting = [lane for lane in lanes if not lane.is_ready()]
        try:
            self._wait(condition, waiting, began, deadline_s)
        finally:
            waited_s = time.perf_counter() - began
            for lane in waiting:
                lane.waited_s += waited_s

    def _wait(
        self, condition: Callable[[], bool], lanes: list[Channel], began: float, deadline_s: float
    ) -> None:
        look, probe = began + LOOK_S, began + NUDGE_S
        while True:
            now = time.perf_counter()
            if now - began >= deadline_s:
                what = ", ".join(f"channel '{x.name}' with site '{x.peer}'" for x in lanes)
                raise WaitTimeout(what or f"site '{self.connections.name}'", now - began)
            if now >= look:
                look = now + LOOK_S
                if self._lost(lanes, condition):
                    return
            if now >= probe:
                probe = now + NUDGE_S
                for lane in lanes:
                    lane.probe()
            self.poll(min(look, probe, began + deadline_s) - now)
            if condition():
                return

    def _lost(self, lanes: list[Channel], condition: Callable[[], bool]) -> bool:
        """Raise `PeerLost` if a lane's other site is dead; but first hear what it still said."""
        for lane in lanes:
            reason = self._alive(lane.peer)
            if reason is not None:
                while self.poll(LAST_WORDS_S):
                    pass
                if condition():
                    return True
                raise PeerLost(lane.peer, reason)
        return False

    def flush(self) -> None:
        """Send what was gathered, and credits: before a wait, and before a long piece of work."""
        self.connections.settle()

    # mail

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Take in some of what has come, and wait for something if nothing is here; whether anything came."""
        connections = self.connections
        if timeout_s > 0:
            connections.flush()
        mail = connections.poll(min(timeout_s, CREDIT_S))
        if not mail and timeout_s > 0:
            connections.settle()
            mail = connections.poll(max(timeout_s - CREDIT_S, 0.0))
        self._take_in(mail)
        return bool(mail)

    def drain(self) -> None:
        """Take in all that has come: between two pieces of work."""
        for _ in range(DRAIN_POLLS):
            if not self.poll():
                break

    def _take_in(self, mail: list[tuple[str, Item]]) -> None:
        for peer, item in mail:
            try:
                self._heard(peer, item)
            except RefusedMessage as error:
                self.connections.refuse(error.reason, peer)
        if mail:
            for work in self._served:
                work()

    def _heard(self, peer: str, item: Item) -> None:
        if item[0] == ASIDE:
            self.on_out_of_band(peer, item[1])
            return
        kind, lane, epoch, number = item[:4]
        if kind in _TO_RECEIVERS:
            ends: dict[str, Any] = self._receivers
        else:
            ends = self._senders
        end = ends.get(lane)
        if end is None:
            raise RefusedMessage("unknown lane")
        if end.peer != peer:
            raise RefusedMessage("another site's lane")
        if end.epoch != epoch:
            raise RefusedMessage("another epoch")
        _HANDLERS[kind](end, number, item)

    def close(self, drop: bool = False) -> None:
        """Close the mailbox; lanes that should end well were closed and settled before."""
        self.connections.close(drop)


def _no_asides(peer: str, text: str) -> None:
    raise RefusedMessage("aside")


def _token(receiver: Receiver, number: int, item: Item) -> None:
    if not _wanted(receiver, number):
        return
    clock, tree, payload, nbytes = item[4:]
    try:
        if isinstance(payload, Lazy):
            payload = payload()
        clock = None if clock is None else read_clock(clock)
        value = decode(tree, payload)
    except RefusedMessage as error:
        raise RefusedMessage(f"{error.reason} in {receiver.name}") from None
    receiver.accept(value, clock, nbytes)


def _given(receiver: Receiver, number: int, item: Item) -> None:
    if _wanted(receiver, number):
        receiver.accept(item[5], item[4], item[6])


def _wanted(receiver: Receiver, number: int) -> bool:
    if receiver.closed:
        receiver.refuse_more()
        return False
    return receiver.expects(number)


def _end(receiver: Receiver, number: int, item: Item) -> None:
    if receiver.expects(number, end=True):
        receiver.ended(item[4])


_TO_RECEIVERS = frozenset({TOKEN, GIVEN, END, ASK})
_HANDLERS: dict[int, Callable[[Any, int, Item], None]] = {
    TOKEN: _token,
    GIVEN: _given,
    END: _end,
    ASK: lambda receiver, number, item: receiver.asked(number),
    CREDIT: lambda sender, number, item: sender.credit(number),
    WANT: lambda sender, number, item: sender.send_again(number),
    BREAK: lambda sender, number, item: sender.broken(number, item[4]),
}
