"""What channels count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """One end of a lane."""

    lane: str
    peer: str
    tokens: int  # sent, or taken
    bytes: int  # of those tokens
    queued: int  # tokens: sent and not known to be taken, or here and not taken
    queued_bytes: int
    waited_s: float  # that waits named this lane and it was not ready
    resent: int  # tokens (a sender's)
    duplicates: int  # tokens that came twice, and were dropped (a receiver's)


@dataclass(frozen=True, slots=True)
class SiteTraffic:
    """One site's mail, by way of sockets; threads hand over by reference."""

    messages_sent: int
    messages_received: int
    bytes_sent: int  # through sockets, shared memory not counted
    bytes_received: int
    shared_tokens: int  # sent through shared memory
    shared_bytes: int  # of shared memory, held for sending
    not_shared: int  # tokens big enough for shared memory that went another way: no slot was free
    cuts: int  # connections that broke off
    refused: Mapping[tuple[str, str], int]  # by reason and site ('?': unknown)


@dataclass(frozen=True, slots=True)
class ConnectionTraffic:
    """The way to one other site; nothing of it is counted between threads."""

    messages: int = 0
    bytes: int = 0
    shared_tokens: int = 0
    shared_bytes: int = 0
    not_shared: int = 0
