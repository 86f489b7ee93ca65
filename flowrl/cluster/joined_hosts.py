"""The run's end of the control connections: which hosts have joined, and what they are told.

Data flows on other ways, from site to site.
"""

from __future__ import annotations

import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flowrl.channels.errors import RefusedMessage
from flowrl.cluster.compatibility import differences, machine_facts, unlike
from flowrl.cluster.control import BEAT_S, LEAVE_S, PROTOCOL, SILENCE_S, ControlConnection, read
from flowrl.cluster.control_socket import ControlSocket
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import FlowError, UsageError
from flowrl.graph.placement import HostOffer
from flowrl.machine.network_address import ANY_MACHINE, is_connectable, parse_address
from flowrl.runtime.sites.addresses import Addresses
from flowrl.runtime.sites.graph_transfer import SentGraph

LISTEN_S = 30.0  # in which a host says where its sites will be reached
GOODBYE_S = LEAVE_S + 2.0  # in which hosts say that they have ended everything
LOOK_S = 0.2


class HostError(FlowError):
    """A host that did not join, does not fit, or cannot do what it was told."""


class JoinedHost:
    """A host that has joined, as the run sees it."""

    def __init__(
        self, who: bytes, session: bytes, offer: HostOffer, about: Mapping[str, Any]
    ) -> None:
        self.who, self.line, self.offer, self.about = who, ControlConnection(session), offer, about
        self.name = offer.name
        self.heard_s = time.monotonic()
        self.gone = ""  # why it is not there any more
        self.ports: dict[str, int] | None = None
        self.ended: dict[str, str] = {}  # sites, and why


class JoinedHosts:
    """All hosts of a run; owned by the coordinator's thread."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        sent: SentGraph,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`sent`: the graph; `tell` shows a line to whoever has started the run."""
        self.rendezvous, self.sent, self._tell = rendezvous, sent, tell
        self.facts = machine_facts()
        self._joined: dict[bytes, JoinedHost] = {}
        self._homes: dict[str, JoinedHost] = {}  # by site
        self._unfit: list[tuple[HostOffer, str]] = []  # hosts that could not join, and why
        self._refused: Counter[str] = Counter()  # messages, by reason and host
        self._closed = False
        self._beat_s = 0.0
        self._reception = ControlSocket(rendezvous.listen, rendezvous.key)

    @property
    def address(self) -> str:
        """Where hosts join."""
        return self._reception.address

    @property
    def shown(self) -> str:
        """The same as somebody elsewhere would write it."""
        address = self._reception.address
        return (
            address.replace(ANY_MACHINE, socket.gethostname())
            if self.machine == ANY_MACHINE
            else address
        )

    @property
    def machine(self) -> str:
        """The address that sites of this machine listen at."""
        return self._reception.machine

    # who is there

    def offers(self) -> list[HostOffer]:
        """What a placement may call the hosts that are there."""
        return [joined.offer for joined in self._here()]

    def facts_by_host(self) -> dict[str, Any]:
        """What is known of each host."""
        return {joined.name: dict(joined.about) for joined in self._here()}

    def warnings(self) -> list[str]:
        """Where hosts that have a site are less alike than bits are promised for; what was refused."""
        used = {joined.name: joined.about for joined in self._homes.values()}
        lines = [line for name in sorted(used) for line in unlike(name, self.facts, used[name])]
        return [*lines, *self._refusals()]

    def _refusals(self) -> list[str]:
        counts = self._refused + self._reception.refused
        return [f"refused at {self.address}: {what} ({n} times)" for what, n in counts.items()]

    def _here(self) -> list[JoinedHost]:
        return [joined for joined in self._joined.values() if not joined.gone]

    def wait(self, places: Iterable[str]) -> list[HostOffer]:
        """Until each place is matched, and enough hosts are there."""
        wanted = list(places)
        deadline = time.monotonic() + self.rendezvous.within_s
        while True:
            self.pump(LOOK_S)
            offers = self.offers()
            open_places = [p for p in wanted if not any(o.matches(p) for o in offers)]
            for offer, why in self._unfit:
                if any(map(offer.matches, open_places)):
                    raise HostError(f"host '{offer.name}' cannot take part: {why}")
            if len(offers) >= self.rendezvous.hosts and not open_places:
                return offers
            if time.monotonic() > deadline:
                raise HostError(self._missing(open_places))

    def _missing(self, open_places: list[str]) -> str:
        there = ", ".join(offer.name for offer in self.offers()) or "none"
        wanted = f"a host for {', '.join(map(repr, open_places))} has" if open_places else (
            f"{self.rendezvous.hosts} hosts have"
        )  # fmt: skip
        told = [
            f"{wanted} not joined within {self.rendezvous.within_s:g} s (joined: {there})",
            *[f"host '{offer.name}' was refused: {why}" for offer, why in self._unfit],
            *self._refusals(),
            f"on the host: flowrl host --join {self.shown} --name NAME, with the same --key",
        ]
        return "; ".join(told)

    # what hosts say

    def pump(self, timeout_s: float = 0.0) -> None:
        """Take in what hosts have said; see who has fallen silent."""
        for who, data in self._reception.receive(timeout_s):
            joined = self._joined.get(who)
            try:
                if joined is None:
                    self._join(who, data)
                else:
                    joined.heard_s = time.monotonic()
                    self._heard(joined, *joined.line.read(data))
            except RefusedMessage as error:
                by = f"host '{joined.name}'" if joined else "somebody who has not joined"
                self._refused[f"{error.reason}, from {by}"] += 1
        self._look()

    def _look(self) -> None:
        """Who hangs up is known when something is said to it; who is cut off is silent."""
        now = time.monotonic()
        if now - self._beat_s >= BEAT_S:
            self._beat_s = now
            for joined in self._here():
                self._say(joined, "beat")
        for joined in self._here():
            if now - joined.heard_s > SILENCE_S:
                joined.gone = f"nothing was heard of it for {SILENCE_S:g} s"

    def _join(self, who: bytes, data: bytes) -> None:
        session, number, word, values = read(data)
        if word != "join" or number:
            raise RefusedMessage("not joined")
        protocol, about = values
        offer = _offer_of(about)
        joined = JoinedHost(who, session, offer, about)
        joined.line.read(data)
        why = self._taken(joined)
        if why:  # perhaps only until it is known that the other has gone
            self._refused[f"{why}, from host '{offer.name}'"] += 1
        elif why := self._unsuitable(protocol, joined):
            self._unfit.append((offer, why))
        if why:
            self._tell(f"host '{offer.name}' is refused: {why}")
            self._say(joined, "refused", why)
            return
        self._joined[who] = joined
        self._tell(f"host '{offer.name}' has joined ({about['cores']} cores, {about['cpu']})")
        self._say(joined, "welcome", self.sent.config["title"])

    def _taken(self, joined: JoinedHost) -> str:
        if any(joined.name == other.name for other in self._here()):
            return "another host has this name already; give it another with --name"
        return ""

    def _unsuitable(self, protocol: int, joined: JoinedHost) -> str:
        if protocol != PROTOCOL:
            return f"it speaks version {protocol} of the protocol, and the run {PROTOCOL}"
        found = "; ".join(differences(self.facts, joined.about))
        return f"{found}; install the same versions" if found else ""

    def _heard(self, joined: JoinedHost, word: str, values: list[Any]) -> None:
        if word == "listening":
            joined.ports = dict(values[0])
        elif word == "said":
            for line in values[0].splitlines():
                print(f"[{joined.name}] {line}", file=sys.stderr, flush=True)
        elif word == "ended":
            joined.ended.setdefault(*values)
        elif word in ("left", "failed"):
            joined.gone = joined.gone or values[0]
        elif word != "beat":
            raise RefusedMessage("unknown word")

    # what they are told

    def _say(self, joined: JoinedHost, word: str, *values: Any) -> None:
        if not self._reception.send(joined.who, joined.line.pack(word, *values)):
            joined.gone = joined.gone or "its connection is closed"

    def listen(self, addresses: Addresses, homes: Mapping[str, str]) -> None:
        """Have each host listen for its sites (by site: the host), and learn where."""
        by_name = {joined.name: joined for joined in self._here()}
        for site, name in homes.items():
            if name not in by_name:
                raise HostError(f"host '{name}' is gone before the run began")
            self._homes[site] = by_name[name]
        used = {joined.name: joined for joined in self._homes.values()}
        for name, joined in used.items():
            self._say(joined, "listen", [site for site, home in homes.items() if home == name])
        deadline = time.monotonic() + LISTEN_S
        for name, joined in used.items():
            addresses.machines[name] = joined.about["address"]
            addresses.this_machine[name] = parse_address(joined.about["joined"], "host").machine
            addresses.ports.update(self._ports(joined, deadline))

    def _ports(self, joined: JoinedHost, deadline: float) -> dict[str, int]:
        while joined.ports is None:
            self.pump(LOOK_S)
            if joined.gone or time.monotonic() > deadline:
                why = joined.gone or f"it did not listen within {LISTEN_S:g} s"
                raise HostError(f"host '{joined.name}': {why}")
        asked = {site for site, home in self._homes.items() if home is joined}
        if joined.ports.keys() != asked or not all(type(p) is int for p in joined.ports.values()):
            raise HostError(f"host '{joined.name}': it listens for other sites than it was asked")
        return joined.ports

    def start(self, common: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Send what the graph needs, and have each host start its sites (by site: what it is told)."""
        for joined in {id(j): j for j in self._homes.values()}.values():
            for name, piece in self.sent.pieces():
                self._say(joined, "file", name, piece)
            mine = {site: told[site] for site, home in self._homes.items() if home is joined}
            self._say(joined, "start", {**common, **self.sent.config}, mine)

    def why_dead(self, site: str) -> str | None:
        """Why a site is dead, or None."""
        joined = self._homes.get(site)
        if joined is None:
            return None
        if joined.gone:
            return f"host '{joined.name}' is lost: {joined.gone}"
        why = joined.ended.get(site)
        return why and f"{why}, on host '{joined.name}'"

    # the end

    def close(self, how: str) -> None:
        """Tell all that the run is over; wait, in bounded time, until they have ended everything."""
        if self._closed:
            return
        self._closed = True
        for joined in self._here():
            self._say(joined, "over", how)
        deadline = time.monotonic() + GOODBYE_S
        while self._here() and time.monotonic() < deadline:
            self.pump(LOOK_S / 4)
        self._reception.close(linger_ms=200)


def _offer_of(about: Mapping[str, Any]) -> HostOffer:
    """What a host says of itself, if it can be true."""
    texts = ("name", "address", "joined", "flowrl", "python", "torch", "numpy", "cpu", "platform")
    labels = about.get("labels")
    if (
        any(type(about.get(key)) is not str for key in texts)
        or type(labels) is not list
        or any(type(label) is not str for label in labels)
        or type(about.get("cores")) is not int
        or not is_connectable(about["address"])
    ):
        raise RefusedMessage("malformed")
    try:
        parse_address(about["joined"], "host")
        return HostOffer(about["name"], tuple(labels))
    except UsageError:
        raise RefusedMessage("malformed") from None
