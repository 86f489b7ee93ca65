"""What a run needs of its hosts, which start some of its sites. `flowrl.cluster.site_hosts` has it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from flowrl.runtime.disturbances import Disturbance
from flowrl.runtime.sites.addresses import Addresses


class RemoteHosts(Protocol):
    """The other machines of a run, which start some of its sites."""

    @property
    def machine(self) -> str:
        """The address at which sites of this machine listen for sites of the hosts."""

    @property
    def patience_s(self) -> float:
        """How long the run waits for a host, if nothing goes on without it."""

    def listen(self, addresses: Addresses, hosts: Mapping[str, str]) -> None:
        """Have each host listen for its sites, and add their addresses. `hosts` is the host of each site."""

    def start(self, config: Mapping[str, Any], sites: Mapping[str, Any]) -> None:
        """Have each host start its sites, with the configuration that `child_site` describes."""

    def pump(self) -> None:
        """Receive the hosts' messages, without waiting."""

    def find_failure(self, site: str) -> str | None:
        """Return why a site is dead, or None."""

    def listen_again(
        self, site: str, place: str, addresses: Addresses, avoided: Collection[str]
    ) -> str:
        """Have a host listen for a site that was lost, and add its address. Return its name; empty if there is none.

        The host matches the place. `avoided` are hosts on which the site cannot be.
        """

    def start_again(self, site: str, config: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Have the host that listens for it start a site. `own` is the site's part of the configuration."""

    def disturb(self, disturbance: Disturbance) -> None:
        """Have a host do something to itself or to one of its sites, if it has one that is meant."""
