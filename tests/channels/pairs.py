"""Two sites over any transport, both in the test's thread; and what stands between them to cut."""

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

TRANSPORTS = ("thread", "ipc", "shared", "curve")
SOCKETS = TRANSPORTS[1:]
RUN = b"this run"
SOON_S = 10.0


@dataclass
class Pair:
    """Site a, that sends, and site b, that receives."""

    kind: str
    a: SiteChannels
    b: SiteChannels
    addresses: dict[str, str]

    def lane(
        self, limits: ChannelLimits | None = None, name: str = "x", epoch: int = 0
    ) -> tuple[Sender, Receiver]:
        """A lane from a to b."""
        limits = limits or ChannelLimits()
        return self.a.open_sender(name, "b", epoch, limits), self.b.open_receiver(
            name, "a", epoch, limits
        )

    def until(self, condition: Callable[[], Any]) -> None:
        """Let both sites look at their mail until the condition holds."""
        until(condition, self.a, self.b)

    def flow(self, sender: Sender, receiver: Receiver, values: list[Any]) -> list[Any]:
        """Send all values, taking whenever something is there; what was taken."""
        taken: list[Any] = []

        def step() -> bool:
            while len(receiver):
                taken.append(receiver.take()[0])
            return len(taken) == len(values)

        for value in values:
            self.until(lambda: step() or sender.is_ready())
            sender.send(value)
        self.until(step)
        return taken


def until(condition: Callable[[], Any], *exchanges: SiteChannels) -> None:
    """Let sites look at their mail until the condition holds."""
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        for channels in exchanges:
            channels.poll(0.001)


def connections(kind: str, name: str, threads: InboxRegistry, **settings: Any) -> SiteConnections:
    """A site's mailbox for a kind of transport."""
    settings.setdefault("shared_bytes", 64 << 20 if kind == "shared" else 0)
    return SiteConnections(name, RUN, threads, **settings)


def listen(kind: str, mail: SiteConnections, folder: Path) -> str:
    """Where others reach it."""
    if kind == "thread":
        return mail.address
    return mail.listen("tcp://127.0.0.1:*" if kind == "curve" else f"ipc://{folder}/{mail.name}")


@contextmanager
def pair(
    kind: str, folder: Path, between: Callable[[str], str] = str, **settings: Any
) -> Iterator[Pair]:
    """Two sites; `between` may put something between a and b: it is given b's address, and gives another."""
    threads: InboxRegistry = {}
    one, two = new_pair(), new_pair()
    keys = {}
    if kind == "curve":
        keys = {"a": Keys(*one, {"b": two[0]}), "b": Keys(*two, {"a": one[0]})}
    a, b = (connections(kind, n, threads, keys=keys.get(n), **settings) for n in "ab")
    addresses = {m.name: listen(kind, m, folder) for m in (a, b)}
    a.connect("b", between(addresses["b"]))
    b.connect("a", addresses["a"])
    two_sites = Pair(kind, SiteChannels(a), SiteChannels(b), addresses)
    try:
        yield two_sites
    finally:
        two_sites.a.close(drop=True)
        two_sites.b.close(drop=True)
