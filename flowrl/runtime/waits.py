"""What may keep an instance from firing, and how long it did: an edge without a token, or without room."""

from __future__ import annotations

from typing import Literal, Protocol

# for an input (or a call's answer), on an output, at work for clients elsewhere, for a grant, at the end
Kind = Literal["waiting", "blocked", "serving", "idle", "stopped"]


class ChannelCounts(Protocol):
    """What one end of a lane has counted, in tokens and bytes."""

    @property
    def tokens(self) -> int:
        """Sent, or taken."""

    @property
    def bytes(self) -> int:
        """Of those."""

    @property
    def queued(self) -> int:
        """Sent and not known to be taken, or here and not taken."""


class HasTokenLimit(Protocol):
    """What a lane holds at most."""

    @property
    def tokens(self) -> int:
        """So many."""


class ChannelEnd(Protocol):
    """One end of an edge that leads to another site."""

    @property
    def limits(self) -> HasTokenLimit:
        """What it holds at most."""

    def statistics(self) -> ChannelCounts:
        """Counts so far."""


class Wait:
    """One end of an edge, for which an instance may have to wait; how long and how often it did."""

    __slots__ = ("edge", "kind", "lane", "peer", "s", "times", "who")

    def __init__(
        self,
        kind: Kind,
        who: str = "",
        edge: str = "",
        peer: str = "",
        lane: ChannelEnd | None = None,
    ) -> None:
        self.kind: Kind = kind
        self.who, self.edge, self.peer, self.lane = who, edge, peer, lane
        self.s, self.times = 0.0, 0
