"""Channels between sites: lanes that lose, double and reorder nothing, whatever carries them."""

from flowrl.channels.errors import (
    Broken,
    ChannelError,
    Closed,
    Late,
    PeerLost,
    Refused,
    Unsendable,
    WouldBlock,
)
from flowrl.channels.exchange import Exchange
from flowrl.channels.mailbox import Mailbox, Threads
from flowrl.channels.post import Bound
from flowrl.channels.receiver import Receiver
from flowrl.channels.sender import Sender
from flowrl.channels.statistics import LaneStatistics, MailboxStatistics

__all__ = [
    "Bound",
    "Broken",
    "ChannelError",
    "Closed",
    "Exchange",
    "LaneStatistics",
    "Late",
    "Mailbox",
    "MailboxStatistics",
    "PeerLost",
    "Receiver",
    "Refused",
    "Sender",
    "Threads",
    "Unsendable",
    "WouldBlock",
]
