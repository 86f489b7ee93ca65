"""A site in a process of its own, made from what the coordinator tells."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from flowrl.channels import SiteChannels, SiteConnections
from flowrl.channels.keys import Keys
from flowrl.checks.check import CheckedGraph, check
from flowrl.graph.loading import load_text
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.network_address import tcp
from flowrl.runtime.processes.beacon import StatusBeacon
from flowrl.runtime.site import run_site


class ChildSite:
    """One of the sites that are told of: the same graph, read and checked once for all of them."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._checked = _read(told)
        where = {(node, replica): site for node, replica, site in told["where"]}
        self._layout = SiteLayout(told["kinds"], where)

    def begin(self, name: str) -> None:
        """Be this site: reachable, and knowing whom it talks to."""
        self._name = name
        self._site: dict[str, Any] = self._told["sites"][name]
        connections = self._connections()
        connections.listen(self._site["near"])
        self._open_door(connections)
        for peer, address in self._site["peers"].items():
            connections.connect(peer, address)
        self._channels = SiteChannels(connections)

    def _connections(self) -> SiteConnections:
        keys = Keys.of_text(self._site["keys"]) if self._site["keys"] else None
        return SiteConnections(self._name, bytes.fromhex(self._told["run"]), keys=keys)

    def _open_door(self, connections: SiteConnections) -> None:
        """Where other machines reach this site, if they have business here; those of others are closed."""
        for name, site in self._told["sites"].items():
            if site["door"] is None:
                continue
            with socket.socket(fileno=site["door"]) as door:
                if name == self._name:
                    machine, port = door.getsockname()[:2]
                    connections.listen(tcp(machine, port), door.detach())

    def run(self) -> None:
        """Be at work until the coordinator says otherwise."""
        beacon = StatusBeacon(self._connections(), self._site["peers"][COORDINATOR])
        work = (self._checked, self._layout, self._name, self._channels, self._told["seed"])
        run_site(*work, beacon.watch)
        beacon.close()


def _read(told: dict[str, Any]) -> CheckedGraph:
    """The graph: of this machine, or sent here and read as there."""
    if "reading" not in told:
        return check(load_text(told["graph"], told["title"]))
    from flowrl.cluster.graph_transfer import read_there  # only hosts need it

    return read_there(told, Path(told["files"]))
