"""Pairs of sites, connected over any transport, in the thread of the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
DEADLINE_S = 10.0


@dataclass
class SitePair:
    """Site a, which sends, and site b, which receives."""

    kind: str
    a: SiteChannels
    b: SiteChannels
    addresses: dict[str, str]

    def open_channel(
        self, limits: ChannelLimits | None = None, name: str = "x", epoch: int = 0
    ) -> tuple[Sender, Receiver]:
        """Open a channel from a to b."""
        limits = limits or ChannelLimits()
        sender = self.a.open_sender(name, "b", epoch, limits)
        return sender, self.b.open_receiver(name, "a", epoch, limits)

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
        "tcp://127.0.0.1:*" if network else f"ipc://{folder}/{connections.site}"
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
    a, b = (new_connections(kind, n, inboxes, keys=keys.get(n), **settings) for n in "ab")
    addresses = {c.site: listen(kind, c, folder) for c in (a, b)}
    a.connect("b", interpose(addresses["b"]))
    b.connect("a", addresses["a"])
    sites = SitePair(kind, SiteChannels(a), SiteChannels(b), addresses)
    try:
        yield sites
    finally:
        sites.a.close(drop=True)
        sites.b.close(drop=True)
