"""Pairs of sites, connected over any transport, in the thread of the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowrl.channels import (
    ChannelLimits,
    InboxRegistry,
    Receiver,
    Sender,
    SiteChannels,
    SiteConnections,
)
from flowrl.channels.keys import Keys, new_pair

TRANSPORTS = ("inproc", "ipc", "shared", "curve")
SOCKETS = TRANSPORTS[1:]
RUN = b"this run"
DEADLINE_S = 60.0


@dataclass
class SitePair:
    """Site a, which sends, and site b, which receives."""

    kind: str
    a: SiteChannels
    b: SiteChannels
    addresses: dict[str, str]
    start: Callable[[str, int], SiteChannels]  # starts a site by its name, in this epoch
    replaced: list[SiteChannels] = field(default_factory=list)

    def open_channel(
        self, limits: ChannelLimits | None = None, name: str = "x"
    ) -> tuple[Sender, Receiver]:
        """Open a channel from a to b."""
        limits = limits or ChannelLimits()
        sender = self.a.open_sender(name, "b", limits)
        return sender, self.b.open_receiver(name, "a", limits)

    def start_a_again(self, epoch: int = 1) -> SiteChannels:
        """Start site a again, which b does not learn. Return the old one, which goes on."""
        old, self.a = self.a, self.start("a", epoch)
        self.replaced.append(old)
        self.a.connections.connect("b", self.addresses["b"])
        return old

    def poll_until(self, condition: Callable[[], Any]) -> None:
        poll_until(condition, self.a, self.b)

    def transfer(self, sender: Sender, receiver: Receiver, values: list[Any]) -> list[Any]:
        """Send all values while taking what has arrived, and return what was taken."""
        taken: list[Any] = []

        def take() -> bool:
            while len(receiver):
                taken.append(receiver.take()[0])
            return len(taken) == len(values)

        for value in values:
            self.poll_until(lambda: take() or sender.is_ready())
            sender.send(value)
        self.poll_until(take)
        return taken


def poll_until(condition: Callable[[], Any], *sites: SiteChannels) -> None:
    """Have the sites process what arrives until the condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        for site in sites:
            site.poll(0.001)


def new_connections(
    kind: str, site: str, inboxes: InboxRegistry, **settings: Any
) -> SiteConnections:
    settings.setdefault("shared_bytes", 64 << 20 if kind == "shared" else 0)
    return SiteConnections(site, RUN, inboxes, **settings)


def listen(kind: str, connections: SiteConnections, folder: Path) -> str:
    """Have a site listen over a kind of transport, and return its address."""
    if kind == "inproc":
        return connections.inproc_address
    network = kind == "curve"
    return connections.listen(
        "tcp://127.0.0.1:*" if network else f"ipc://{folder}/{connections.site}{connections.epoch}"
    )


@contextmanager
def open_pair(
    kind: str, folder: Path, interpose: Callable[[str], str] = str, **settings: Any
) -> Iterator[SitePair]:
    """Connect two sites. `interpose` may put a proxy before b: it gets b's address, and returns the proxy's."""
    inboxes: InboxRegistry = {}
    one, two = new_pair(), new_pair()
    keys = {}
    if kind == "curve":
        keys = {"a": Keys(*one, {"b": two[0]}), "b": Keys(*two, {"a": one[0]})}
    addresses = {}

    def start(name: str, epoch: int = 0) -> SiteChannels:
        connections = new_connections(
            kind, name, inboxes, keys=keys.get(name), epoch=epoch, **settings
        )
        addresses[name] = listen(kind, connections, folder)
        return SiteChannels(connections)

    a, b = start("a"), start("b")
    a.connections.connect("b", interpose(addresses["b"]))
    b.connections.connect("a", addresses["a"])
    sites = SitePair(kind, a, b, addresses, start)
    try:
        yield sites
    finally:
        for site in (*sites.replaced, sites.a, sites.b):
            site.close(drop=True)
