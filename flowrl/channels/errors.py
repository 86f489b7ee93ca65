"""What can go wrong on a channel, and how it is said.

ChannelError
├── Closed        the lane was closed, here or (after its last token) by its sender
├── Broken        the receiving end is gone: nothing can be sent any more
├── WouldBlock    there is no room, or no token, now
├── Late          a wait passed its deadline
├── PeerLost      the other site is dead
├── Unsendable    a value that no message can carry
└── Refused       bytes that are no message of this run: counted, and otherwise ignored
"""

from __future__ import annotations

from flowrl.core.errors import FlowError


class ChannelError(FlowError):
    """The base of all errors of channels."""


class ChannelClosed(ChannelError):
    """The lane was closed."""


class ChannelBroken(ChannelError):
    """The receiving end of the lane is gone."""


class WouldBlock(ChannelError):
    """There is no room for another token, or no token, now."""


class WaitTimeout(ChannelError):
    """A wait passed its deadline."""

    def __init__(self, what: str, waited_s: float) -> None:
        self.what, self.waited_s = what, waited_s
        super().__init__(f"{what}: nothing came in {waited_s:.1f} s, though the other site lives")


class PeerLost(ChannelError):
    """The other site is dead."""

    def __init__(self, peer: str, reason: str) -> None:
        self.peer, self.reason = peer, reason
        super().__init__(f"site '{peer}' is lost: {reason}")


class UnsendableValue(ChannelError):
    """A value that no message can carry."""


class RefusedMessage(ChannelError):
    """Bytes that are no message of this run; `reason` is a word or two, to count by."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)
