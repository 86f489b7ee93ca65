"""What a transport provides, and which transports there are.

A transport moves frames between sites that use the same scheme of addresses, such as `ipc://path`. To add one,
write a module with a class that satisfies `Transport`, and register it in `TRANSPORTS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from flowrl.channels.messages import Frame
from flowrl.core.errors import UsageError
from flowrl.core.state import Clock

if TYPE_CHECKING:
    from flowrl.channels.inproc import InboxRegistry
    from flowrl.channels.keys import Keys


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """How many tokens, and how many bytes of them, may be sent and not yet taken.

    A token may be sent if it fits beside those already sent, assuming that it is no larger than the largest so far. A
    token that is larger than the limit itself is sent alone.
    """

    tokens: int = 64
    bytes: int = 256 << 20


class PackedFrame(Protocol):
    """A token, or another frame, ready to be sent once or again."""

    nbytes: int

    def release(self) -> None:
        """Free what was reserved for the frame, because its receiver will never accept it."""


P = TypeVar("P", bound=PackedFrame)


@dataclass(slots=True)
class Traffic:
    """What was sent over one connection. Between threads nothing is counted."""

    messages: int = 0
    bytes: int = 0
    shared_tokens: int = 0
    shared_bytes: int = 0
    not_shared: int = 0


class Connection(ABC, Generic[P]):
    """The connection to one other site. Sending never blocks, because channels limit what is under way."""

    def __init__(self) -> None:
        self._deferred_credits: list[Callable[[], None]] = []

    @abstractmethod
    def pack_token(
        self, channel: str, epoch: int, number: int, clock: Clock | None, value: Any
    ) -> P:
        """Pack a token. A clock of None is that of the token before."""

    @abstractmethod
    def pack_frame(self, *frame: Any) -> P:
        """Pack a frame that carries no value."""

    @abstractmethod
    def send(self, packed: P) -> None:
        """Send a packed frame, now or with the frames that follow, but no later than `flush`."""

    def send_frame(self, *frame: Any) -> None:
        self.send(self.pack_frame(*frame))

    def defer_credit(self, send_credit: Callable[[], None]) -> None:
        """Call `send_credit` when next something is sent to this site, or at `flush_credits`."""
        self._deferred_credits.append(send_credit)

    def _send_deferred_credits(self) -> None:
        deferred, self._deferred_credits = self._deferred_credits, []
        for send_credit in deferred:
            send_credit()

    def flush(self) -> None:
        """Send what was gathered."""

    def flush_credits(self) -> None:
        """Send the deferred credits, and what was gathered."""
        if self._deferred_credits:
            self._send_deferred_credits()
        self.flush()

    def close(self, drop: bool = False) -> None:
        """Send what was gathered, or drop it, and release all resources."""

    def traffic(self) -> Traffic:
        return Traffic()


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """What every transport of a site is made with."""

    site: str
    run: bytes  # the run's secret, which is in every message
    keys: Keys | None  # for the network
    max_token_bytes: int
    shared_bytes: int  # of shared memory, at most, for each peer
    count_refusal: Callable[[str, str], None]  # the reason, and the peer ('?': unknown)
    inboxes: InboxRegistry  # of the sites in this process


Received = list[tuple[str, Frame]]  # frames with the sites that sent them


@dataclass(slots=True)
class ReceiveCounts:
    messages: int = 0
    bytes: int = 0
    lost_connections: int = 0


class Transport(Protocol):
    """All connections of one site over one transport; owned by the site's thread."""

    def listen(self, address: str, listening_fd: int | None = None) -> str:
        """Accept connections at this address, and return the address that peers connect to.

        `listening_fd` is the descriptor of a socket that already listens there.
        """

    def connect(self, peer: str, address: str) -> Connection[Any]:
        """Connect to a peer; from now on its messages are accepted."""

    def disconnect(self, peer: str) -> None:
        """Accept no more messages of this peer, whose connection is closed."""

    def readers(self) -> Mapping[Any, Callable[[], Received]]:
        """Return what to poll, each with the function that reads from it once it is readable."""

    def receive_counts(self) -> ReceiveCounts: ...

    def close(self) -> None: ...


class TransportEntry(NamedTuple):
    """How a transport is registered."""

    factory: str  # module:class, called with the site's settings
    reach: str  # which sites it connects, a word of `SiteLayout.reach`
    description: str  # for drawings

    def load(self) -> Callable[[SiteSettings], Transport]:
        """Import the transport. Threads need no sockets, so ZeroMQ is imported only where it is used."""
        module, _, name = self.factory.partition(":")
        factory: Callable[[SiteSettings], Transport] = getattr(import_module(module), name)
        return factory


TRANSPORTS: dict[str, TransportEntry] = {  # by the scheme of its addresses
    "inproc": TransportEntry("flowrl.channels.inproc:InprocTransport", "process", "by reference"),
    "ipc": TransportEntry("flowrl.channels.ipc:IpcTransport", "machine", "ipc + shared memory"),
    "tcp": TransportEntry("flowrl.channels.tcp:TcpTransport", "network", "tcp"),
}


def scheme_of(address: str) -> str:
    """Return the scheme of an address, which names a transport."""
    scheme, separator, _ = address.partition("://")
    if not separator or scheme not in TRANSPORTS:
        known = ", ".join(f"{name}://" for name in TRANSPORTS)
        raise UsageError(f"{address}: unknown kind of address; expected one of {known}")
    return scheme


def transport_modules() -> tuple[str, ...]:
    """Return the modules of all transports, for a process that imports them before it forks."""
    return tuple(entry.factory.partition(":")[0] for entry in TRANSPORTS.values())


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """What one end of a channel has counted."""

    channel: str
    peer: str
    tokens: int  # sent, or taken
    bytes: int  # of those tokens
    queued: int  # tokens sent and not known to be taken, or received and not taken
    queued_bytes: int
    waited_s: float  # in waits that named this channel while it was not ready
    resent: int  # tokens, counted by the sender
    duplicates: int  # tokens that arrived twice and were dropped, counted by the receiver


@dataclass(frozen=True, slots=True)
class SiteTraffic:
    """What one site has sent and received over sockets. Threads pass values by reference, which is not counted."""

    messages_sent: int
    messages_received: int
    bytes_sent: int  # through sockets, without shared memory
    bytes_received: int
    shared_tokens: int  # sent through shared memory
    shared_bytes: int  # of shared memory, held for sending
    not_shared: int  # tokens large enough for shared memory that found no free slot
    lost_connections: int
    refused: Mapping[tuple[str, str], int] = field(
        default_factory=dict
    )  # by reason and peer ('?': unknown)
