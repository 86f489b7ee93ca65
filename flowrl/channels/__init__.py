"""Channels between sites: lanes that lose, double and reorder nothing, whatever carries them."""

from flowrl.channels.errors import (
    ChannelBroken,
    ChannelClosed,
    ChannelError,
    PeerLost,
    RefusedMessage,
    UnsendableValue,
    WaitTimeout,
    WouldBlock,
)
from flowrl.channels.receiver import Receiver
from flowrl.channels.sender import Sender
from flowrl.channels.site_channels import SiteChannels
from flowrl.channels.site_connections import InboxRegistry, SiteConnections
from flowrl.channels.statistics import ChannelStatistics, SiteTraffic
from flowrl.channels.transport import ChannelLimits

__all__ = [
    "ChannelBroken",
    "ChannelClosed",
    "ChannelError",
    "ChannelLimits",
    "ChannelStatistics",
    "InboxRegistry",
    "PeerLost",
    "Receiver",
    "RefusedMessage",
    "Sender",
    "SiteChannels",
    "SiteConnections",
    "SiteTraffic",
    "UnsendableValue",
    "WaitTimeout",
    "WouldBlock",
]
