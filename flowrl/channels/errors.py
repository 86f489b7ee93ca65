"""The errors of channels.

ChannelError
├── ChannelClosed     the channel was closed, on this site or (after its last token) by its sender
├── ChannelBroken     the receiver is closed, and nothing can be sent any more
├── WouldBlock        there is no room for a token now, or no token to take
├── WaitTimeout       a wait passed its deadline
├── PeerLost          the other site is dead
├── UnsendableValue   a value has a type that no message can carry
└── RefusedMessage    received bytes are not a valid message of this run; they are counted and otherwise ignored
"""

from __future__ import annotations

from flowrl.core.errors import FlowError


class ChannelError(FlowError):
    pass


class ChannelClosed(ChannelError):
    pass


class ChannelBroken(ChannelError):
    pass


class WouldBlock(ChannelError):
    pass


class WaitTimeout(ChannelError):
    def __init__(self, what: str, waited_s: float) -> None:
        self.what, self.waited_s = what, waited_s
        super().__init__(
            f"{what}: nothing arrived within {waited_s:.1f} s, though the other site is alive"
        )


class PeerLost(ChannelError):
    def __init__(self, peer: str, reason: str) -> None:
        self.peer, self.reason = peer, reason
        super().__init__(f"site '{peer}' is lost: {reason}")


class UnsendableValue(ChannelError):
    pass


class RefusedMessage(ChannelError):
    """`reason` has one to three words, because refusals are counted by reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)
