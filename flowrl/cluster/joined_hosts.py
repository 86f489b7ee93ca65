"""The hosts of a run, as the run sees them: which ones have joined, what they report, and what they are to do.

Only control messages go this way. Tokens go from site to site.
"""

from __future__ import annotations

import itertools
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flowrl.channels.errors import RefusedMessage
from flowrl.channels.refusals import RefusalCounts
from flowrl.cluster.compatibility import host_warnings, incompatibilities, machine_facts
from flowrl.cluster.control_socket import ControlSocket
from flowrl.cluster.join_file import JoinInfo, RunIdentity, write_end, write_join_file
from flowrl.cluster.launched_hosts import LaunchedHosts
from flowrl.cluster.messages import (
    CLOSE_S,
    HEARTBEAT_S,
    PROTOCOL,
    SILENCE_S,
    Disturb,
    EndSites,
    FilePiece,
    Heartbeat,
    HostDropped,
    HostLeft,
    HostMessage,
    Join,
    JoinRefused,
    ListenFor,
    RequestFailed,
    RunEnded,
    RunMessage,
    SiteEnded,
    SiteOutput,
    SitePorts,
    SitesEnded,
    StartSites,
    Welcome,
    run_session,
    unpack,
)
from flowrl.cluster.rendezvous import Rendezvous
from flowrl.core.errors import FlowError, UsageError
from flowrl.core.wording import count_text, list_text
from flowrl.graph.host_offers import HostOffer
from flowrl.machine.network_address import ANY_MACHINE, is_connectable, parse_address
from flowrl.runtime.disturbances import Disturbance, SiteSignal
from flowrl.runtime.sites.addresses import Addresses
from flowrl.runtime.sites.graph_transfer import SentGraph
from flowrl.runtime.sites.site_failures import SiteLost
from flowrl.runtime.status import HostStatus

LISTEN_TIMEOUT_S = 30.0  # within which a host reports its ports
LEAVE_TIMEOUT_S = CLOSE_S + 2.0  # within which hosts report that they have ended their sites
POLL_S = 0.2
LINGER_MS = 200


class HostError(FlowError):
    """A host did not join, does not fit the run, or could not do what the run requested."""


class JoinedHost:
    """A host that offers itself to the run."""

    def __init__(self, connection: bytes, first_message: bytes) -> None:
        """Raises `RefusedMessage` unless the first message is a valid `Join`."""
        self.connection = connection
        self.session = run_session(unpack(first_message)[0])
        join = self.session.read(first_message)
        if not isinstance(join, Join):
            raise RefusedMessage("not joined")
        self.join, self.offer = join, _checked_offer(join)
        self.heard_s = time.monotonic()
        self.why_lost = ""  # empty while the host is there
        self.is_dropped = False  # whether the host knows that it is lost
        self.ports: Mapping[str, int] | None = None
        self.ended_sites: dict[str, str] = {}  # and why they have ended
        self.has_sites = False  # of this run
        self.has_files = False  # of the graph

    @property
    def name(self) -> str:
        return self.offer.name

    def give_number(self, taken: set[str]) -> None:
        """Put the smallest free number for the `*` of its name."""
        if self.name.endswith("*"):
            names = (f"{self.name[:-1]}{number}" for number in itertools.count())
            self.offer = replace(self.offer, name=next(n for n in names if n not in taken))

    def facts(self) -> dict[str, Any]:
        """The host's row in `environment.json`."""
        join = self.join
        about = {"name": join.name, "labels": list(join.labels), "address": join.address}
        resources = {**asdict(join.resources), "gpus": list(join.resources.gpus)}
        return {**about, "joined": join.joined, **join.machine, **resources}


class JoinedHosts:
    """All hosts of a run; owned by the coordinator's thread. It is the coordinator's `RemoteHosts`."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        sent: SentGraph,
        show: Callable[[str], None] = lambda text: None,
        identity: RunIdentity | None = None,
        log_folder: Path | None = None,
        useful_hosts: int = 0,
    ) -> None:
        """`sent` is the graph for the hosts; `show` shows a line to the user.

        So many hosts are useful to the run: they may all join at once, also if it begins with fewer.
        With an identity, hosts that were started for another run or epoch are refused. What sites print goes into a
        file for each host in the folder of logs.
        """
        self.rendezvous, self.sent, self._show = rendezvous, sent, show
        self.machine_facts = machine_facts()
        self._joined: dict[bytes, JoinedHost] = {}  # by connection
        self._host_of: dict[str, JoinedHost] = {}  # by site
        self._unfit: list[tuple[HostOffer, str]] = []  # hosts that could not join, and why
        self._identity = identity
        self._log_folder = log_folder
        self.own_key: Path | None = None  # the file of a key that was made for this run
        self._join_files: dict[Path, RunIdentity] = {}
        self._needed = rendezvous.hosts or 1
        self._missing = ""  # which hosts `wait` waits for; empty while it does not
        self._have_been_enough = False  # once they were, a run that recovers can do with fewer
        self.launched: LaunchedHosts | None = None  # what starts hosts, if people do not
        self._refused = RefusalCounts()  # messages, by reason and host
        self._is_closed = False
        self._heartbeat_s = 0.0
        self._socket = ControlSocket(rendezvous, useful_hosts)

    @property
    def address(self) -> str:
        """The address at which hosts join."""
        return self._socket.address

    @property
    def join_address(self) -> str:
        """The address at which hosts join, as another machine would write it."""
        if self.machine != ANY_MACHINE:
            return self.address
        return self.address.replace(ANY_MACHINE, socket.gethostname())

    @property
    def waiting_text(self) -> str:
        """What the run waits for, as a line for the user."""
        if self.launched is not None:
            return f"waiting for {count_text(self._needed, 'host')} to be launched"
        missing = f" ({self._missing})" if self._missing else ""
        return f"waiting for hosts{missing}: flowrl host --join {self.join_address}"

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for hosts."""
        return bool(self._missing)

    @property
    def machine(self) -> str:
        """The address at which the sites of this machine listen."""
        return self._socket.machine

    @property
    def patience_s(self) -> float:
        """How long the run waits for a host."""
        return self.rendezvous.within_s

    def write_join_file(self, path: Path, info: JoinInfo) -> None:
        """Write a join file, in which `close` puts that the run has ended."""
        assert info.identity is not None
        self._join_files[path] = info.identity
        write_join_file(path, info)

    # which hosts have joined

    def _present(self) -> list[JoinedHost]:
        return [host for host in self._joined.values() if not host.why_lost]

    def offers(self) -> list[HostOffer]:
        return [host.offer for host in self._present()]

    def facts_by_host(self) -> dict[str, Any]:
        return {host.name: host.facts() for host in self._present()}

    def statuses(self) -> tuple[HostStatus, ...]:
        """All hosts that have joined, also those that are lost. Any thread may call this."""
        sites = dict(self._host_of)
        return tuple(
            HostStatus(
                name=host.name,
                labels=host.offer.labels,
                address=host.join.address,
                cores=host.join.resources.cores,
                memory_bytes=host.join.resources.memory_bytes,
                gpus=len(host.join.resources.gpus),
                cpu=host.join.machine.get("cpu", ""),
                sites=tuple(site for site, other in sites.items() if other is host),
                silent_s=time.monotonic() - host.heard_s,
                why_lost=host.why_lost,
            )
            for host in list(self._joined.values())
        )

    def warnings(self) -> list[str]:
        """How hosts that have a site differ from this machine, and which messages were refused."""
        used = {host.name: host.join.machine for host in self._host_of.values()}
        lines = [
            line
            for name in sorted(used)
            for line in host_warnings(name, self.machine_facts, used[name])
        ]
        return [*lines, *self._refusals()]

    def _refusals(self) -> list[str]:
        where = f"at {self.address}"
        return [*self._refused.lines(where), *self._socket.refused.lines(where)]

    def wait(
        self,
        places: Iterable[str],
        unmet_needs: Callable[[Sequence[HostOffer]], str] = lambda offers: "",
    ) -> list[HostOffer]:
        """Wait until enough hosts have joined, each place means one of them, and all nodes have what they need.

        `unmet_needs` says what nodes lack that are put on hosts of which these are all.
        """
        self._missing = "none has joined"
        try:
            return self._wait(list(places), unmet_needs)
        finally:
            self._missing = ""

    def _wait(
        self, wanted: list[str], unmet_needs: Callable[[Sequence[HostOffer]], str]
    ) -> list[HostOffer]:
        deadline = time.monotonic() + self.rendezvous.within_s
        while True:
            self.pump(POLL_S)
            if self.launched is not None and self.launched.is_waiting:
                deadline = time.monotonic() + self.rendezvous.within_s
            offers = self.offers()
            open_places = [p for p in wanted if not any(o.matches(p) for o in offers)]
            for offer, why in self._unfit:
                if any(map(offer.matches, open_places)):
                    raise HostError(f"host '{offer.name}' cannot take part: {why}")
            lacking = "" if open_places else unmet_needs(offers)
            is_placeable = not open_places and not lacking
            self._missing = self._missing_hosts(open_places, lacking)
            if len(offers) >= self._needed and is_placeable:
                self._have_been_enough = True
                return offers
            missing = self.launched.missing if self.launched is not None else ""
            is_over = time.monotonic() > deadline
            if self._have_been_enough and is_placeable and (missing or is_over):
                return offers
            if self.launched is not None and self.launched.failure:
                raise HostError(self.launched.failure)
            if missing and not self._have_been_enough:
                raise HostError(missing)
            if is_over:
                raise HostError(self._missing_text(open_places, lacking))

    def _missing_hosts(self, open_places: list[str], lacking: str) -> str:
        if open_places:
            return f"none has joined for {', '.join(map(repr, open_places))}"
        return lacking or f"{len(self._present())} of {self._needed} have joined"

    def _missing_text(self, open_places: list[str], lacking: str) -> str:
        offers = self.offers()
        joined = list_text([offer.name for offer in offers])
        within = f"within {self.rendezvous.within_s:g} s"
        missing = f"{len(offers):,} of {count_text(self._needed, 'host')} have joined {within} (joined: {joined})"
        if open_places:
            names = ", ".join(map(repr, open_places))
            missing = f"a host for {names} has not joined {within} (joined: {joined})"
        elif lacking:
            missing = f"no hosts have joined {within} that have what the nodes need: {lacking}"
        return "; ".join(
            [
                missing,
                *[f"host '{offer.name}' was refused: {why}" for offer, why in self._unfit],
                *self._refusals(),
                f"on the host: flowrl host --join {self.join_address} --name NAME, with the same --key",
            ]
        )

    # what hosts report

    def pump(self, timeout_s: float = 0.0) -> None:
        """Handle the messages that have arrived, exchange heartbeats, and notice hosts that are silent."""
        for connection, data in self._socket.receive(timeout_s):
            host = self._joined.get(connection)
            try:
                if host is None:
                    self._handle_join(connection, data)
                elif host.why_lost:
                    self._drop(host)
                else:
                    host.heard_s = time.monotonic()
                    self._handle(host, host.session.read(data))
            except RefusedMessage as error:
                sender = f"host '{host.name}'" if host else "a connection that has not joined"
                self._refused.add(f"{error.reason}, from {sender}")
        now = time.monotonic()
        if now - self._heartbeat_s >= HEARTBEAT_S:
            self._heartbeat_s = now
            for host in self._present():
                self._send(host, Heartbeat())
            for line in self.launched.take_news() if self.launched is not None else ():
                self._show(line)
        for host in self._present():
            if now - host.heard_s > SILENCE_S:
                host.why_lost = f"nothing was heard of it for {SILENCE_S:g} s"

    def _handle_join(self, connection: bytes, data: bytes) -> None:
        host = JoinedHost(connection, data)
        host.give_number({other.name for other in self._present()})
        why = ""
        if any(host.name == other.name for other in self._present()):
            why = "another host has this name already; give it another with --name"
            self._refused.add(f"{why}, from host '{host.name}'")
        elif why := self._why_unfit(host.join):
            self._unfit.append((host.offer, why))
        if why:
            self._show(f"host '{host.name}' is refused: {why}")
            self._send(host, JoinRefused(why))
            return
        self._joined[connection] = host
        cpu = host.join.machine.get("cpu")
        self._show(f"host '{host.name}' has joined ({host.join.resources}, {cpu})")
        self._send(host, Welcome(self.sent.config["title"], host.name))

    def _drop(self, host: JoinedHost) -> None:
        """Let a host that was taken for dead know this, so that it ends its sites, and may join again."""
        if not host.is_dropped:
            host.is_dropped = True
            self._send(host, HostDropped(host.why_lost))

    def _why_unfit(self, join: Join) -> str:
        if join.protocol != PROTOCOL:
            return f"it speaks version {join.protocol} of the protocol, and the run {PROTOCOL}"
        if self._identity is not None and join.run:
            why = self._identity.refusal_of(RunIdentity(join.run, join.epoch))
            if why:
                return why
        found = "; ".join(incompatibilities(self.machine_facts, join.machine))
        return f"{found}; install the same versions" if found else ""

    def _handle(self, host: JoinedHost, message: HostMessage) -> None:
        if isinstance(message, SitePorts):
            host.ports = message.ports
        elif isinstance(message, SiteOutput):
            self._take_output(host, message.text)
        elif isinstance(message, SiteEnded):
            host.ended_sites.setdefault(message.site, message.why)
        elif isinstance(message, SitesEnded):
            host.ports, host.ended_sites, host.has_sites = None, {}, False
            host.has_files = False
        elif isinstance(message, HostLeft | RequestFailed):
            host.why_lost = host.why_lost or message.why
        elif isinstance(message, Join):
            raise RefusedMessage("joined twice")

    def _take_output(self, host: JoinedHost, text: str) -> None:
        """Print what sites of a host have printed, and append it to the host's log."""
        for line in text.splitlines():
            print(f"[{host.name}] {line}", file=sys.stderr, flush=True)
        if self._log_folder is not None:
            self._log_folder.mkdir(exist_ok=True)
            with (self._log_folder / f"{host.name}.log").open("a", encoding="utf-8") as log:
                log.write(text)

    # requests

    def _send(self, host: JoinedHost, message: RunMessage) -> None:
        if not self._socket.send(host.connection, host.session.pack(message)):
            host.why_lost = host.why_lost or "its connection is closed"

    def listen(self, addresses: Addresses, hosts: Mapping[str, str]) -> None:
        """Have each host listen for its sites (by site: the host), and add their addresses."""
        present = {host.name: host for host in self._present()}
        for site, name in hosts.items():
            if name not in present:
                raise SiteLost(f"host '{name}' is gone before its sites began")
            self._host_of[site] = present[name]
        used = {host.name: host for host in self._host_of.values()}
        for name, host in used.items():
            host.has_sites = True
            sites = tuple(site for site, other in hosts.items() if other == name)
            self._send(host, ListenFor(sites))
        deadline = time.monotonic() + LISTEN_TIMEOUT_S
        for host in used.values():
            self._add_addresses(host, addresses)
            addresses.ports.update(self._wait_for_ports(host, deadline))

    def _add_addresses(self, host: JoinedHost, addresses: Addresses) -> None:
        addresses.machines[host.name] = host.join.address
        addresses.this_machine[host.name] = parse_address(host.join.joined, "host").machine

    def _wait_for_ports(self, host: JoinedHost, deadline: float) -> Mapping[str, int]:
        while host.ports is None:
            self.pump(POLL_S)
            if host.why_lost or time.monotonic() > deadline:
                why = host.why_lost or f"it did not listen within {LISTEN_TIMEOUT_S:g} s"
                raise SiteLost(f"host '{host.name}' is lost: {why}")
        if host.ports.keys() != {site for site, other in self._host_of.items() if other is host}:
            raise HostError(f"host '{host.name}': it listens for other sites than it was asked for")
        return host.ports

    def start(self, config: Mapping[str, Any], sites: Mapping[str, Any]) -> None:
        """Send the graph, and have each host start its sites, see `child_site`."""
        for host in {host.name: host for host in self._host_of.values()}.values():
            self._send_files(host)
            own = {site: sites[site] for site, other in self._host_of.items() if other is host}
            self._send(host, StartSites({**config, **self.sent.config}, own))

    def _send_files(self, host: JoinedHost) -> None:
        if not host.has_files:
            host.has_files = True
            for path, piece in self.sent.pieces():
                self._send(host, FilePiece(path, piece))

    def listen_again(
        self, site: str, place: str, addresses: Addresses, avoided: Collection[str]
    ) -> str:
        """Have a host listen for a site that was lost: its own one, or that with the fewest sites."""
        before, busy = self._host_of.get(site), list(self._host_of.values())
        fitting = [h for h in self._present() if h.offer.matches(place) and h.name not in avoided]
        if not fitting:
            return ""
        host = min(fitting, key=lambda other: (other is not before, busy.count(other)))
        self._host_of[site] = host
        host.ended_sites.pop(site, None)
        host.has_sites, host.ports = True, None
        self._send(host, ListenFor((site,)))
        deadline = time.monotonic() + LISTEN_TIMEOUT_S
        while host.ports is None or site not in host.ports:
            self.pump(POLL_S)
            if host.why_lost or time.monotonic() > deadline:
                return ""
        self._add_addresses(host, addresses)
        addresses.ports[site] = host.ports[site]
        return host.name

    def start_again(self, site: str, config: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        host = self._host_of[site]
        self._send_files(host)
        self._send(host, StartSites({**config, **self.sent.config}, {site: own}))

    def find_failure(self, site: str) -> str | None:
        """Why a site is dead, or None."""
        host = self._host_of.get(site)
        if host is None:
            return None
        if host.why_lost:
            return f"host '{host.name}' is lost: {host.why_lost}"
        why = host.ended_sites.get(site)
        return why and f"{why}, on host '{host.name}'"

    def disturb(self, disturbance: Disturbance) -> None:
        for host in self._present():
            sites = [site for site, other in self._host_of.items() if other is host]
            is_meant = (
                disturbance.site in sites
                if isinstance(disturbance, SiteSignal)
                else disturbance.host == host.name
            )
            if is_meant:
                self._send(host, Disturb(disturbance))

    # the end

    def end_sites(self) -> None:
        """Let all hosts end their sites, so that they can be started anew. A host that does not is left out."""
        self._host_of = {}
        for host in self._present():
            if host.has_sites:
                self._send(host, EndSites())
        deadline = time.monotonic() + LEAVE_TIMEOUT_S
        while any(host.has_sites for host in self._present()):
            self.pump(POLL_S / 4)
            if time.monotonic() > deadline:
                for host in self._present():
                    if host.has_sites:
                        host.why_lost = f"it did not end its sites within {LEAVE_TIMEOUT_S:g} s"

    def close(self, how: str) -> None:
        """Notify all hosts that the run is over, and wait until they have ended their sites."""
        if self._is_closed:
            return
        self._is_closed = True
        for path, identity in self._join_files.items():
            with suppress(OSError):  # a folder that is gone, or a full disk
                write_end(path, identity)
        if self.own_key is not None:
            self.own_key.unlink(missing_ok=True)
        for host in self._present():
            self._send(host, RunEnded(how))
        deadline = time.monotonic() + LEAVE_TIMEOUT_S
        while self._present() and time.monotonic() < deadline:
            self.pump(POLL_S / 4)
        self._socket.close(LINGER_MS)
        if self.launched is not None:
            self.launched.end()
            for line in self.launched.take_news():
                self._show(line)


def _checked_offer(join: Join) -> HostOffer:
    """The host's names, if all that it says of itself can be true."""
    try:
        if not is_connectable(join.address):
            raise RefusedMessage("malformed")
        parse_address(join.joined, "host")
        return HostOffer(join.name, join.labels, join.resources, join.machine_id)
    except UsageError:
        raise RefusedMessage("malformed") from None
