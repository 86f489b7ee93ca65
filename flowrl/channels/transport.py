"""The interface of transports, and the table of all transports.

A transport moves frames between sites that use the same scheme of addresses, such as `ipc://path`. A new transport is
a module with a class that satisfies `Transport`, and an entry in `TRANSPORTS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from flowrl.channels.messages import Frame
from flowrl.channels.wire_format import AS_IT_IS, WireFormat
from flowrl.core.errors import UsageError
from flowrl.core.state import Clock

if TYPE_CHECKING:
    from flowrl.channels.inproc import InboxRegistry
    from flowrl.channels.keys import Keys


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """The most tokens, and the most bytes of tokens, that may be sent and not yet taken.

    A sender is ready if a token of the largest size so far would fit; a smaller one may be sent sooner. A token that is
    larger than the limit itself is sent when no other token is in flight.
    """

    tokens: int = 64
    bytes: int = 256 << 20


class PackedFrame(Protocol):
    """A token, or another frame, that can be sent several times."""

    nbytes: int

    @property
    def wire_bytes(self) -> int:
        """The bytes in messages; 0 between threads."""

    def release(self) -> None:
        """Free the memory that is reserved for the frame, because its receiver will never accept it."""


P = TypeVar("P", bound=PackedFrame)


@dataclass(slots=True)
class Traffic:
    """Counts of one connection's sent messages. A connection between threads counts nothing."""

    bytes: int = 0
    shared_tokens: int = 0
    shared_bytes: int = 0
    not_shared: int = 0


class Connection(ABC, Generic[P]):
    """The connection to one other site. Sending never blocks, because channels limit the tokens in flight."""

    spans_machines = False  # whether wire formats are used

    def __init__(self) -> None:
        self._deferred_credits: list[Callable[[], None]] = []

    @abstractmethod
    def pack_token(
        self,
        channel: str,
        epoch: int,
        number: int,
        clock: Clock | None,
        value: Any,
        wire: WireFormat = AS_IT_IS,
    ) -> P:
        """Pack a token. A clock of None stands for the clock of the token before."""

    @abstractmethod
    def pack_frame(self, *frame: Any) -> P:
        """Pack a frame that carries no value."""

    @abstractmethod
    def send(self, packed: P) -> None:
        """Send a packed frame now, or together with later frames, but no later than `flush`."""

    def send_frame(self, *frame: Any) -> None:
        self.send(self.pack_frame(*frame))

    def defer_credit(self, send_credit: Callable[[], None]) -> None:
        """Call `send_credit` before the next message to this site, or at `flush_credits`."""
        self._deferred_credits.append(send_credit)

    def _send_deferred_credits(self) -> None:
        deferred, self._deferred_credits = self._deferred_credits, []
        for send_credit in deferred:
            send_credit()

    def flush(self) -> None:
        """Send all gathered frames."""

    def flush_credits(self) -> None:
        """Send the deferred credits and all gathered frames."""
        if self._deferred_credits:
            self._send_deferred_credits()
        self.flush()

    def close(self, drop: bool = False) -> None:
        """Send or drop the gathered frames, and release all resources."""

    def traffic(self) -> Traffic:
        return Traffic()


class CountRefusal(Protocol):
    def __call__(self, reason: str, peer: str, times: int = 1) -> None:
        """Count refused messages or connections of a peer ('?': unknown)."""


@dataclass(frozen=True, slots=True)
class SiteSettings:
    """The constructor argument of every transport of a site."""

    site: str
    run: bytes  # the run's secret, which every message contains
    keys: Keys | None  # for the network
    max_token_bytes: int
    shared_bytes: int  # the limit of shared memory for each peer
    count_refusal: CountRefusal
    inboxes: InboxRegistry  # of the sites in this process
    epoch: int = 0  # how often the site was started again


Received = list[tuple[str, Frame]]  # frames with the sites that sent them


class Transport(Protocol):
    """All connections of one site over one transport; owned by the site's thread."""

    def listen(self, address: str, listening_fd: int | None = None) -> str:
        """Accept connections at this address, and return the address that peers connect to.

        `listening_fd` is the descriptor of a socket that already listens there.
        """

    def connect(self, peer: str, address: str, epoch: int = 0) -> Connection[Any]:
        """Connect to a peer; from now on its messages of this epoch are accepted, and no others."""

    def disconnect(self, peer: str) -> None:
        """Accept no more messages of a peer, whose connection is closed."""

    def readers(self) -> Mapping[Any, Callable[[], Received]]:
        """Return the sockets to poll, each with the function that reads from it once it is readable."""

    def lost_connections(self) -> int:
        """Return how many connections of peers were lost so far."""

    def close(self) -> None: ...


class TransportEntry(NamedTuple):
    """The registration of a transport."""

    factory: str  # module:class, called with the site's settings
    reach: str  # the distance of the sites that it connects, as in `SiteLayout.reach`
    description: str  # for drawings

    def load(self) -> Callable[[SiteSettings], Transport]:
        """Import the transport. Sites in threads need no sockets, so ZeroMQ is imported only where it is used."""
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
    """Return the modules of all transports, to be imported before a process forks."""
    return tuple(entry.factory.partition(":")[0] for entry in TRANSPORTS.values())


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Counts of one end of a channel."""

    channel: str
    peer: str
    tokens: int  # sent, or taken
    bytes: int  # of the tokens sent, or taken
    wire_bytes: int | None  # sent, if the channel spans machines and has a wire format
    queued: int  # tokens sent and not acknowledged, or received and not taken
    queued_bytes: int
    waited_s: float  # in waits for this channel
    resent: int  # tokens that were sent again, counted by the sender
    duplicates: int  # tokens that arrived again and were dropped, counted by the receiver


@dataclass(frozen=True, slots=True)
class SiteTraffic:
    """Counts of one site's messages over sockets. Values that threads pass by reference are not counted."""

    bytes_sent: int  # through sockets, without shared memory
    shared_tokens: int  # sent through shared memory
    shared_bytes: int  # of shared memory that is held for sending
    not_shared: int  # tokens large enough for shared memory that found no free slot
    lost_connections: int
    # Refused messages, by reason and peer ('?': unknown).
    refused: Mapping[tuple[str, str], int] = field(default_factory=dict)
