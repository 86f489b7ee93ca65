"""Channels between sites. Over every transport, no token is lost, duplicated or reordered."""

from flowrl.channels.channel import Receiver, Sender
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
from flowrl.channels.inproc import InboxRegistry
from flowrl.channels.site_channels import SiteChannels
from flowrl.channels.site_connections import SiteConnections
from flowrl.channels.transport import ChannelLimits, ChannelStatistics, SiteTraffic

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
