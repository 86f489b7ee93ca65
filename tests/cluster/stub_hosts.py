"""Hosts without machines: the message with which one joins, and the run's view of it, without a connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowrl.cluster.compatibility import machine_facts
from flowrl.cluster.joined_host import JoinedHost
from flowrl.cluster.messages import PROTOCOL, Join, RunMessage, host_session
from flowrl.graph.host_offers import HostOffer
from flowrl.machine.resources import NO_RESOURCES

ADDRESS = "tcp://127.0.0.1:5555"
FACTS = machine_facts()
SESSION = b"0123456789abcdef"


def join_message(name: str, **fields: Any) -> Join:
    """The offer of a host; `fields` replace those of a sound message."""
    sound = {"protocol": PROTOCOL, "name": name, "labels": (), "address": "127.0.0.1", "resources": NO_RESOURCES,
             "joined": ADDRESS, "machine_id": "m", "machine": FACTS, "run": "", "epoch": -1}  # fmt: skip
    return Join(**{**sound, **fields})


def stub_host(name: str, **fields: Any) -> JoinedHost:
    """A host that offers itself."""
    return JoinedHost(name.encode(), host_session(SESSION).pack(join_message(name, **fields)))


class StubJoinedHosts:
    """Stands for `JoinedHosts`. `on_pump` is what happens while messages are handled."""

    def __init__(self, *hosts: JoinedHost) -> None:
        self.hosts = list(hosts)
        self.sent: list[tuple[str, RunMessage]] = []
        self.on_pump: Callable[[], None] = lambda: None

    def present(self) -> list[JoinedHost]:
        return [host for host in self.hosts if not host.why_lost]

    def offers(self) -> Sequence[HostOffer]:
        return [host.offer for host in self.present()]

    def refusals(self) -> list[str]:
        return ["refused at the port: malformed (1 times)"]

    def send(self, host: JoinedHost, message: RunMessage) -> None:
        self.sent.append((host.name, message))

    def pump(self, timeout_s: float = 0.0) -> None:
        self.on_pump()

    def pump_until(self, is_done: Callable[[], bool], within_s: float) -> bool:
        """Handle messages once; time does not pass."""
        self.pump()
        return is_done()
