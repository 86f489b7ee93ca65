"""One host of a run, as the run sees it: what it said when it joined, and what it has reported since."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from typing import Any

from flowrl.channels.errors import RefusedMessage
from flowrl.cluster.messages import (
    HostLeft,
    HostMessage,
    Join,
    RequestFailed,
    SiteEnded,
    SitePorts,
    SitesEnded,
    run_session,
    unpack,
)
from flowrl.core.errors import FlowError, UsageError
from flowrl.graph.host_offers import HostOffer
from flowrl.machine.network_address import is_connectable, parse_address
from flowrl.runtime.status import HostStatus


class HostError(FlowError):
    """A host did not join, does not fit the run, or could not do what the run requested."""


class JoinedHost:
    """A host that offers itself to the run, or has joined it."""

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
        self.ports: Mapping[str, int] | None = None  # at which it listens for its sites
        self.ended_sites: dict[str, str] = {}  # and why they have ended
        self.has_sites = False  # of this run
        self.has_files = False  # of the graph

    @property
    def name(self) -> str:
        return self.offer.name

    def give_number(self, taken: Collection[str]) -> None:
        """Put the smallest free number for the `*` of its name."""
        if self.name.endswith("*"):
            names = (f"{self.name[:-1]}{number}" for number in itertools.count())
            self.offer = replace(self.offer, name=next(n for n in names if n not in taken))

    def take_report(self, message: HostMessage) -> None:
        """Note what the host reports of itself and its sites."""
        if isinstance(message, SitePorts):
            self.ports = message.ports
        elif isinstance(message, SiteEnded):
            self.ended_sites.setdefault(message.site, message.why)
        elif isinstance(message, SitesEnded):
            self.ports, self.ended_sites = None, {}
            self.has_sites = self.has_files = False
        elif isinstance(message, HostLeft | RequestFailed):
            self.why_lost = self.why_lost or message.why
        elif isinstance(message, Join):
            raise RefusedMessage("joined twice")

    def facts(self) -> dict[str, Any]:
        """The host's row in `environment.json`."""
        join = self.join
        about = {"name": join.name, "labels": list(join.labels), "address": join.address}
        resources = {**asdict(join.resources), "gpus": list(join.resources.gpus)}
        return {**about, "joined": join.joined, **join.machine, **resources}

    def status(self, sites: tuple[str, ...]) -> HostStatus:
        """The host's status, with the sites that it has."""
        resources = self.join.resources
        return HostStatus(
            name=self.name,
            labels=self.offer.labels,
            address=self.join.address,
            cores=resources.cores,
            memory_bytes=resources.memory_bytes,
            gpus=len(resources.gpus),
            cpu=self.join.machine.get("cpu", ""),
            sites=sites,
            silent_s=time.monotonic() - self.heard_s,
            why_lost=self.why_lost,
        )


def _checked_offer(join: Join) -> HostOffer:
    """The host's names, if all that it says of itself can be true."""
    try:
        if not is_connectable(join.address):
            raise RefusedMessage("malformed")
        parse_address(join.joined, "host")
        return HostOffer(join.name, join.labels, join.resources, join.machine_id)
    except UsageError:
        raise RefusedMessage("malformed") from None
