"""All channels of one site, multiplexed over its connections. Every wait of a site is a wait of its `SiteChannels`.

While a site waits for one channel, it serves all of them: it receives tokens, counts credits, and requests lost
tokens again. Every wait has a deadline, and ends when the site that it waits for is dead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from flowrl.channels.channel import Receiver, Sender
from flowrl.channels.codec import decode, decode_clock
from flowrl.channels.errors import PeerLost, RefusedMessage, WaitTimeout
from flowrl.channels.messages import (
    CREDIT,
    CREDIT_REQUEST,
    END,
    OUT_OF_BAND,
    RECEIVER_CLOSED,
    RESEND,
    TOKEN,
    TOKEN_REFERENCE,
    CompressedPayload,
    Frame,
    SharedPayload,
)
from flowrl.channels.site_connections import SiteConnections
from flowrl.channels.transport import ChannelLimits, Received
from flowrl.channels.wire_format import AS_IT_IS, WireFormat

Channel = Sender | Receiver
FindFailure = Callable[[str], str | None]  # returns why a site is dead, or None

DEFAULT_LIMITS = ChannelLimits()
PEER_CHECK_S = 0.2  # between a wait's checks whether its peers are alive
PROBE_S = 0.5  # after which a wait without progress requests lost tokens or credits
CREDIT_S = 1e-3  # how long credits wait for a message that carries them
DRAIN_POLLS = 64  # a limit, so that a fast sender does not block the site
LAST_MESSAGES_S = 0.05  # in which the last messages of a dead site may arrive


class SiteChannels:
    """The channels of one site; owned by one thread."""

    def __init__(
        self, connections: SiteConnections, find_failure: FindFailure = lambda peer: None
    ) -> None:
        self.connections = connections
        self.find_failure = find_failure
        self.on_out_of_band: Callable[[str, str], None] = _refuse_out_of_band
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[str, Receiver] = {}
        self._callbacks: list[Callable[[], None]] = []
        self._probed_in_all_waits: list[Channel] = []
        self._next_probe_of_these = 0.0

    def open_sender(
        self,
        name: str,
        peer: str,
        limits: ChannelLimits = DEFAULT_LIMITS,
        wire: WireFormat = AS_IT_IS,
    ) -> Sender:
        """Open the sending end of a channel. Frames of another epoch are refused.

        The wire format is used between machines only; elsewhere it would take longer than it saves.
        """
        connection, epoch = self.connections.connections[peer], self.connections.epoch_with(peer)
        used = wire if connection.spans_machines else AS_IT_IS
        sender = Sender(name, peer, epoch, limits, connection, used)
        self._senders[name] = sender
        return sender

    def open_receiver(
        self,
        name: str,
        peer: str,
        limits: ChannelLimits = DEFAULT_LIMITS,
        wire: WireFormat = AS_IT_IS,
    ) -> Receiver:
        """Open the receiving end of a channel. Frames of another epoch are refused.

        `limits` and `wire` are those of the sender.
        """
        connection, epoch = self.connections.connections[peer], self.connections.epoch_with(peer)
        receiver = Receiver(name, peer, epoch, limits, connection, wire)
        self._receivers[name] = receiver
        return receiver

    def replace_peer(self, peer: str, address: str, epoch: int) -> None:
        """Connect to a peer that was started again, and begin all channels with it anew.

        What was on its way between the two is lost, with the tokens that receivers hold and nobody has taken.
        """
        connection = self.connections.connect(peer, address, epoch)
        channels: list[Channel] = [*self._senders.values(), *self._receivers.values()]
        for channel in channels:
            if channel.peer == peer:
                channel.begin_anew(self.connections.epoch_with(peer), connection)

    def on_receive(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after frames have arrived, also while the site waits."""
        self._callbacks.append(callback)

    def probe_in_all_waits(self, *channels: Channel) -> None:
        """Request what is lost on these channels in all waits of the site, as none of them may be for it."""
        self._probed_in_all_waits += channels

    def wait(self, channel: Channel, deadline_s: float) -> None:
        """Wait until the channel is ready, so that `take` or `send` does not block."""
        if not channel.is_ready():
            self.wait_until(channel.is_ready, (channel,), deadline_s)

    def wait_until(
        self, condition: Callable[[], bool], channels: Iterable[Channel], deadline_s: float
    ) -> None:
        """Wait until a condition holds, which frames of these channels can make true.

        Raise `PeerLost` if a channel's peer is dead, and `WaitTimeout` after `deadline_s`.
        """
        if condition():
            return
        began = time.perf_counter()
        waiting = [channel for channel in channels if not channel.is_ready()]
        try:
            self._wait(condition, waiting, began, deadline_s)
        finally:
            waited_s = time.perf_counter() - began
            for channel in waiting:
                channel.waited_s += waited_s

    def _wait(
        self,
        condition: Callable[[], bool],
        channels: list[Channel],
        began: float,
        deadline_s: float,
    ) -> None:
        next_check, next_probe = began + PEER_CHECK_S, began + PROBE_S
        while True:
            now = time.perf_counter()
            if now - began >= deadline_s:
                what = ", ".join(f"channel '{c.name}' with site '{c.peer}'" for c in channels)
                raise WaitTimeout(what or f"site '{self.connections.site}'", now - began)
            if now >= next_check:
                next_check = now + PEER_CHECK_S
                if self._holds_after_peer_check(channels, condition):
                    return
            if now >= next_probe:
                next_probe = now + PROBE_S
                for channel in channels:
                    channel.probe()
            if self._probed_in_all_waits and now >= self._next_probe_of_these:
                self._next_probe_of_these = now + PROBE_S
                for channel in self._probed_in_all_waits:
                    if not channel.is_ready():
                        channel.probe()
            self.poll(min(next_check, next_probe, began + deadline_s) - now)
            if condition():
                return

    def _holds_after_peer_check(
        self, channels: list[Channel], condition: Callable[[], bool]
    ) -> bool:
        """Raise `PeerLost` if a channel's peer is dead and its last messages do not fulfil the condition."""
        for channel in channels:
            reason = self.find_failure(channel.peer)
            if reason is not None:
                while self.poll(LAST_MESSAGES_S):
                    pass
                if condition():
                    return True
                raise PeerLost(channel.peer, reason)
        return False

    def flush(self) -> None:
        """Send all gathered frames and credits. A site calls this before long computations."""
        self.connections.flush_credits()

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Process frames that have arrived, or wait for some; return whether there were any."""
        connections = self.connections
        if timeout_s > 0:
            connections.flush()
        received = connections.poll(min(timeout_s, CREDIT_S))
        if not received and timeout_s > 0:
            connections.flush_credits()
            received = connections.poll(max(timeout_s - CREDIT_S, 0.0))
        self._process(received)
        return bool(received)

    def drain(self) -> None:
        """Process all frames that have arrived, without waiting."""
        for _ in range(DRAIN_POLLS):
            if not self.poll():
                break

    def _process(self, received: Received) -> None:
        for peer, frame in received:
            try:
                self._process_frame(peer, frame)
            except RefusedMessage as error:
                self.connections.count_refusal(error.reason, peer)
        if received:
            for callback in self._callbacks:
                callback()

    def _process_frame(self, peer: str, frame: Frame) -> None:
        if frame[0] == OUT_OF_BAND:
            self.on_out_of_band(peer, frame[1])
            return
        kind, name, epoch, number = frame[:4]
        if kind in _TO_RECEIVERS:
            ends: dict[str, Any] = self._receivers
        else:
            ends = self._senders
        end = ends.get(name)
        if end is None:
            raise RefusedMessage("unknown channel")
        if end.peer != peer:
            raise RefusedMessage("another site's channel")
        if end.epoch != epoch:
            raise RefusedMessage("another epoch")
        _HANDLERS[kind](end, number, frame)

    def close(self, drop: bool = False) -> None:
        """Close all connections, but no channel: peers see that the site is gone, not that its channels ended."""
        self.connections.close(drop)


def _refuse_out_of_band(peer: str, text: str) -> None:
    raise RefusedMessage("out-of-band message")


def _on_token(receiver: Receiver, number: int, frame: Frame) -> None:
    if not _is_wanted(receiver, number):
        return
    clock, tree, payload, nbytes = frame[4:]
    try:
        if isinstance(payload, SharedPayload):
            payload = payload.locate()
        elif isinstance(payload, CompressedPayload):
            nbytes = max(nbytes, payload.nbytes)
            payload = receiver.decompress(payload)
        clock = None if clock is None else decode_clock(clock)
        value = decode(tree, payload)
    except RefusedMessage as error:
        raise RefusedMessage(f"{error.reason} in {receiver.name}") from None
    receiver.on_token(value, clock, nbytes)


def _on_token_reference(receiver: Receiver, number: int, frame: Frame) -> None:
    if _is_wanted(receiver, number):
        receiver.on_token(frame[5], frame[4], frame[6])


def _is_wanted(receiver: Receiver, number: int) -> bool:
    if receiver.closed:
        receiver.notify_closed()
        return False
    return receiver.accepts(number)


def _on_end(receiver: Receiver, number: int, frame: Frame) -> None:
    if receiver.accepts(number, end=True):
        receiver.on_end(frame[4])


_TO_RECEIVERS = frozenset({TOKEN, TOKEN_REFERENCE, END, CREDIT_REQUEST})
_HANDLERS: dict[int, Callable[[Any, int, Frame], None]] = {
    TOKEN: _on_token,
    TOKEN_REFERENCE: _on_token_reference,
    END: _on_end,
    CREDIT_REQUEST: lambda receiver, number, frame: receiver.on_credit_request(number),
    CREDIT: lambda sender, number, frame: sender.on_credit(number),
    RESEND: lambda sender, number, frame: sender.on_resend_request(number),
    RECEIVER_CLOSED: lambda sender, number, frame: sender.on_receiver_closed(number, frame[4]),
}
