"""The control messages between a run and its hosts, and one session of them.

On the wire a message is msgpack: the session (which the host chooses when it joins), the message's number in its
direction, and one of the dataclasses below. Whatever is not the next message of its session is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgpack

from flowrl.channels.errors import RefusedMessage, UnsendableValue
from flowrl.core.plain_data import DataCodec, MalformedDataError
from flowrl.machine.resources import MachineResources
from flowrl.runtime.disturbances import Disturbance

PROTOCOL = 6
MAX_MESSAGE_BYTES = 64 << 20
SESSION_BYTES = 16
HEARTBEAT_S = 1.0  # between the heartbeats of both ends
SILENCE_S = 8.0  # after which the other end is taken for dead
CLOSE_S = 3.0  # within which the sites of an ended run should end


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender is alive. Both ends send it."""


# from a host


@dataclass(frozen=True, slots=True)
class Join:
    """The host offers itself. `machine` are the facts of `machine_facts`.

    In a name that ends with `*`, the run puts a number for it. `run` and `epoch` are those of the join file; they are
    empty and -1 if the host was given an address.
    """

    protocol: int
    name: str
    labels: tuple[str, ...]
    address: str  # at which other machines reach this one
    joined: str  # the address at which this machine reaches the run
    resources: MachineResources
    machine_id: str  # see `HostOffer`
    machine: Mapping[str, str]
    run: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SitePorts:
    """The ports at which the host listens for its sites, by site."""

    ports: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SiteOutput:
    """Text that sites have printed."""

    text: str


@dataclass(frozen=True, slots=True)
class SiteEnded:
    site: str
    why: str


@dataclass(frozen=True, slots=True)
class SitesEnded:
    """All sites have ended that the run had here, and the host is ready for others."""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The host could not do what the run requested, and leaves."""

    why: str


@dataclass(frozen=True, slots=True)
class HostLeft:
    """The host's last message."""

    why: str


HostMessage = (
    Heartbeat | Join | SitePorts | SiteOutput | SiteEnded | SitesEnded | RequestFailed | HostLeft
)


# from the run


@dataclass(frozen=True, slots=True)
class Welcome:
    """The host has joined the run of this graph, which calls it by this name."""

    graph: str
    name: str


@dataclass(frozen=True, slots=True)
class JoinRefused:
    why: str


@dataclass(frozen=True, slots=True)
class FilePiece:
    """The next piece of a file, whose path is relative to a folder of the run on the host."""

    path: str
    content: bytes


@dataclass(frozen=True, slots=True)
class ListenFor:
    """The sites that the host will run: it listens for them from now on."""

    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartSites:
    """The configuration of the host's sites (see `child_site`): what they have in common, and a part for each."""

    config: Mapping[str, Any]
    sites: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EndSites:
    """The host ends all sites of the run, which has lost one of its sites and begins them anew."""


@dataclass(frozen=True, slots=True)
class Disturb:
    """The host does something to one of its sites, or to itself, because a person wants to see what happens."""

    disturbance: Disturbance


@dataclass(frozen=True, slots=True)
class HostDropped:
    """The run has taken the host for dead, and no longer counts on it."""

    why: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    how: str


RunMessage = (
    Heartbeat
    | Welcome
    | JoinRefused
    | FilePiece
    | ListenFor
    | StartSites
    | EndSites
    | Disturb
    | HostDropped
    | RunEnded
)

HOST_MESSAGE: DataCodec[HostMessage] = DataCodec(HostMessage)
RUN_MESSAGE: DataCodec[RunMessage] = DataCodec(RunMessage)

Out = TypeVar("Out")
In = TypeVar("In")


class ControlSession(Generic[Out, In]):
    """Packs and reads the messages of one session, at one end."""

    def __init__(self, session: bytes, out: DataCodec[Out], into: DataCodec[In]) -> None:
        self.session = session
        self._out, self._into = out, into
        self._sent = self._read = 0

    def pack(self, message: Out) -> bytes:
        data: bytes = msgpack.packb([self.session, self._sent, self._out.encode(message)])
        if len(data) > MAX_MESSAGE_BYTES:
            what = f"control message {type(message).__name__} has {len(data)} bytes"
            raise UnsendableValue(f"{what}; at most {MAX_MESSAGE_BYTES} are sent")
        self._sent += 1
        return data

    def read(self, data: bytes) -> In:
        session, number, message = unpack(data)
        if session != self.session:
            raise RefusedMessage("another session")
        if number != self._read:
            raise RefusedMessage("replayed" if number < self._read else "out of order")
        try:
            decoded = self._into.decode(message)
        except MalformedDataError:
            raise RefusedMessage("malformed") from None
        self._read += 1
        return decoded


def host_session(session: bytes) -> ControlSession[HostMessage, RunMessage]:
    """The host's end of a session."""
    return ControlSession(session, HOST_MESSAGE, RUN_MESSAGE)


def run_session(session: bytes) -> ControlSession[RunMessage, HostMessage]:
    """The run's end of a session."""
    return ControlSession(session, RUN_MESSAGE, HOST_MESSAGE)


def unpack(data: bytes) -> tuple[bytes, int, Any]:
    """The session, the number and the undecoded content of a message."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise RefusedMessage("oversized")
    try:
        envelope = msgpack.unpackb(data, max_ext_len=0)
    except (ValueError, TypeError, RecursionError, MemoryError):
        raise RefusedMessage("malformed") from None
    if type(envelope) is not list or len(envelope) != 3:
        raise RefusedMessage("malformed")
    session, number, message = envelope
    if type(session) is not bytes or len(session) != SESSION_BYTES or type(number) is not int:
        raise RefusedMessage("malformed")
    return session, number, message
