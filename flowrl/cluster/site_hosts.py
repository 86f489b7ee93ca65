"""The sites of a run that are on hosts: which host has which site, and how these are started, watched and ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flowrl.cluster.joined_host import JoinedHost
from flowrl.cluster.joined_hosts import LEAVE_TIMEOUT_S, JoinedHosts
from flowrl.cluster.messages import Disturb, EndSites, FilePiece, ListenFor, StartSites
from flowrl.machine.network_address import parse_address
from flowrl.runtime.disturbances import Disturbance, SiteSignal
from flowrl.runtime.sites.addresses import Addresses
from flowrl.runtime.sites.graph_transfer import SentGraph
from flowrl.runtime.sites.site_failures import SiteLost

LISTEN_TIMEOUT_S = 30.0  # within which a host reports its ports


class SiteHosts:
    """The hosts of a run's sites. It is the coordinator's `RemoteHosts`."""

    def __init__(
        self, joined: JoinedHosts, sent: SentGraph, machine: str, patience_s: float
    ) -> None:
        """`sent` is the graph for the hosts; sites of this machine listen for those of hosts at `machine`."""
        self._joined, self._sent = joined, sent
        self.machine, self.patience_s = machine, patience_s
        self._host_of: dict[str, JoinedHost] = {}  # by site

    def used(self) -> dict[str, JoinedHost]:
        """The hosts that have sites, by name."""
        return {host.name: host for host in self._host_of.values()}

    def sites_of(self, host: JoinedHost) -> tuple[str, ...]:
        """The sites that a host has. Any thread may call this."""
        return tuple(site for site, other in dict(self._host_of).items() if other is host)

    def pump(self) -> None:
        """Receive the hosts' messages, without waiting."""
        self._joined.pump()

    # starting sites

    def listen(self, addresses: Addresses, hosts: Mapping[str, str]) -> None:
        """Have each host listen for its sites (by site: the host), and add their addresses."""
        present = {host.name: host for host in self._joined.present()}
        for site, name in hosts.items():
            if name not in present:
                raise SiteLost(f"host '{name}' is gone before its sites began")
            self._host_of[site] = present[name]
        used = self.used().values()
        for host in used:
            self._ask_to_listen(host, self.sites_of(host))
        for host in used:
            self._wait_for_ports(host, self.sites_of(host), addresses)

    def listen_again(
        self, site: str, place: str, addresses: Addresses, avoided: Collection[str]
    ) -> str:
        """Have a host listen for a site that was lost: its own one, or that with the fewest sites."""
        before, busy = self._host_of.get(site), list(self._host_of.values())
        present = self._joined.present()
        fitting = [h for h in present if h.offer.matches(place) and h.name not in avoided]
        if not fitting:
            return ""
        host = min(fitting, key=lambda other: (other is not before, busy.count(other)))
        self._host_of[site] = host
        host.ended_sites.pop(site, None)
        self._ask_to_listen(host, (site,))
        try:
            self._wait_for_ports(host, (site,), addresses)
        except SiteLost:
            return ""
        return host.name

    def _ask_to_listen(self, host: JoinedHost, sites: tuple[str, ...]) -> None:
        host.has_sites, host.ports = True, None
        self._joined.send(host, ListenFor(sites))

    def _wait_for_ports(self, host: JoinedHost, sites: Sequence[str], addresses: Addresses) -> None:
        """Wait until a host listens for these sites, and add their addresses."""

        def listens() -> bool:
            return host.ports is not None and host.ports.keys() >= set(sites)

        self._joined.pump_until(lambda: listens() or bool(host.why_lost), LISTEN_TIMEOUT_S)
        if host.ports is None or not listens():
            why = host.why_lost or f"it did not listen within {LISTEN_TIMEOUT_S:g} s"
            raise SiteLost(f"host '{host.name}' is lost: {why}")
        addresses.machines[host.name] = host.join.address
        addresses.this_machine[host.name] = parse_address(host.join.joined, "host").machine
        addresses.ports.update({site: host.ports[site] for site in sites})

    def start(self, config: Mapping[str, Any], sites: Mapping[str, Any]) -> None:
        """Send the graph, and have each host start its sites, see `child_site`."""
        for host in self.used().values():
            self._start_on(host, config, {site: sites[site] for site in self.sites_of(host)})

    def start_again(self, site: str, config: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Have the host that listens for it start a site. `own` is the site's part of the configuration."""
        self._start_on(self._host_of[site], config, {site: own})

    def _start_on(
        self, host: JoinedHost, config: Mapping[str, Any], sites: Mapping[str, Any]
    ) -> None:
        if not host.has_files:
            host.has_files = True
            for path, piece in self._sent.pieces():
                self._joined.send(host, FilePiece(path, piece))
        self._joined.send(host, StartSites({**config, **self._sent.config}, sites))

    # while they run, and afterwards

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
        """Have a host do something to itself or to one of its sites, if it has one that is meant."""
        for host in self._joined.present():
            is_meant = (
                disturbance.site in self.sites_of(host)
                if isinstance(disturbance, SiteSignal)
                else disturbance.host == host.name
            )
            if is_meant:
                self._joined.send(host, Disturb(disturbance))

    def end(self) -> None:
        """Let all hosts end their sites, so that they can be started anew. A host that does not is left out."""
        self._host_of = {}
        for host in self._with_sites():
            self._joined.send(host, EndSites())
        self._joined.pump_until(lambda: not self._with_sites(), LEAVE_TIMEOUT_S)
        for host in self._with_sites():
            host.why_lost = f"it did not end its sites within {LEAVE_TIMEOUT_S:g} s"

    def _with_sites(self) -> list[JoinedHost]:
        return [host for host in self._joined.present() if host.has_sites]
