"""Passes on the versions of a state, which come from its site or from another relay.

No node on the relay's site fires, so versions are passed on as soon as they arrive. They have the order, and the
contents, in which they were sent: their readers find no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowrl.channels import ChannelError, Receiver, Sender, SiteChannels
from flowrl.runtime.interruptions import ChannelFailure
from flowrl.runtime.streams import Token


class StateRelay:
    """Passes on every version.

    A version is taken when all takers have room for it. Until then it counts against the limits of the channel by which
    it came, so the slowest reader holds back the state's node, as it does without relays.
    """

    def __init__(
        self, channels: SiteChannels, receiver: Receiver, senders: Sequence[Sender]
    ) -> None:
        self._channels, self._receiver, self._senders = channels, receiver, senders
        channels.on_receive(self._pass_on)

    def begin(self) -> None:
        """Request from now on what is lost on the way. All sites have opened their channels."""
        self._channels.probe_in_all_waits(self._receiver, *self._senders)

    def _pass_on(self) -> None:
        try:
            self._send_arrived()
        except ChannelError as error:
            raise ChannelFailure(error) from error

    def _send_arrived(self) -> None:
        while len(self._receiver) and all(sender.is_ready() for sender in self._senders):
            self._send(self._receiver.take(), self._senders)

    @staticmethod
    def _send(token: Token, senders: Sequence[Sender]) -> None:
        for sender in senders:
            sender.send(*token)


class NewestStateRelay(StateRelay):
    """Passes on the newest version. A taker without room misses the versions before the one for which it has."""

    def __init__(
        self, channels: SiteChannels, receiver: Receiver, senders: Sequence[Sender]
    ) -> None:
        super().__init__(channels, receiver, senders)
        self._newest: Token | None = None
        self._waiting: list[Sender] = []  # those that have not sent the newest version

    def _send_arrived(self) -> None:
        while len(self._receiver):
            self._newest, self._waiting = self._receiver.take(), [*self._senders]
        if self._newest is not None:
            ready = [sender for sender in self._waiting if sender.is_ready()]
            self._waiting = [sender for sender in self._waiting if sender not in ready]
            self._send(self._newest, ready)
