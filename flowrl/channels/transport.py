"""The way from one site to another, whatever carries it; and what a lane on it holds at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from flowrl.channels.statistics import ConnectionTraffic
from flowrl.core.state import Clock


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """What a lane holds at most: tokens that were sent and not taken.

    A token may go if it fits beside those under way, supposed that it is no larger than the largest so far; a token
    that is larger than the bound itself goes alone.
    """

    tokens: int = 64
    bytes: int = 256 << 20


class PackedFrame(Protocol):
    """A token or an end, ready to be posted, once or again."""

    nbytes: int


P = TypeVar("P", bound=PackedFrame)


class Connection(Protocol[P]):
    """The way to one other site."""

    def pack(self, lane: str, epoch: int, number: int, clock: Clock | None, value: Any) -> P:
        """Make a token ready; a clock of None is that of the token before."""

    def put(self, parcel: P) -> None:
        """Post it; what comes in a burst may be gathered until `flush`."""

    def say(self, *item: Any) -> None:
        """Post a small item, like `put`."""

    def owe(self, credit: Callable[[], None]) -> None:
        """Call `credit`, which says something, when next something is sent there, or at `settle`."""

    def discard(self, parcel: P) -> None:
        """The other site will never take this in."""

    def end(self, *item: Any) -> P:
        """Make the end of a lane ready."""

    def flush(self) -> None:
        """Send what was gathered."""

    def settle(self) -> None:
        """Give the credits that are owed, and send what was gathered."""

    def close(self, drop: bool = False) -> None:
        """Send the rest, or drop it; let go of what it holds."""

    def statistics(self) -> ConnectionTraffic:
        """Counts so far."""
