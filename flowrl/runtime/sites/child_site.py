"""A site in a process of its own, made from the configuration that the coordinator gave its fork server.

| key | value |
|---|---|
| `run` | the run's secret, in hex |
| `seed` | the run's seed |
| `continues` | whether the run continues from a snapshot |
| `kinds`, `placed`, `state_senders` | the site layout |
| `sites` | for each site of the group: `address`, `listener`, `peers`, `absent`, `keys`, `epochs` and `gpus` |

`address` is for processes of this machine; `listener` is the descriptor of a socket that listens on the network, or
None; `peers` are the peers' addresses, without those that are `absent`; `keys` may be None; `epochs` say how often
this site and its peers were started again; `gpus` are those that its process sees, or none if it sees all of the
machine. Other keys are read by `read_graph`.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

from flowrl.channels import SiteChannels, SiteConnections
from flowrl.channels.keys import Keys
from flowrl.core.project_modules import importable_modules
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.network_address import tcp_url
from flowrl.runtime.sites.graph_transfer import read_graph
from flowrl.runtime.sites.site_run import run_site
from flowrl.runtime.sites.status_beacon import StatusBeacon


class ChildSite:
    """One of the configured sites. The graph is read before the fork; after it `connect` chooses the site."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config
        self._modules = ExitStack()
        self._checked = read_graph(config)
        where = {(node, replica): site for node, replica, site in config["placed"]}
        senders = config["state_senders"]
        self._layout = SiteLayout(config["kinds"], where, state_senders=senders)

    def make_modules_importable(self) -> None:
        """Make the modules beside the graph importable for as long as this process lasts."""
        self._modules.enter_context(importable_modules(self._checked.graph.folders))

    def connect(self, name: str) -> None:
        """Become this site, listen at its addresses, and connect to its peers."""
        self._name = name
        self._site: dict[str, Any] = self._config["sites"][name]
        connections = self._new_connections()
        connections.listen(self._site["address"])
        self._listen_on_network(connections)
        for peer, address in self._site["peers"].items():
            connections.connect(peer, address, self._site["epochs"][peer])
        for peer in self._site["absent"]:
            connections.await_peer(peer)
        self._channels = SiteChannels(connections)

    def _new_connections(self) -> SiteConnections:
        keys = Keys.from_json(self._site["keys"]) if self._site["keys"] else None
        run, epoch = bytes.fromhex(self._config["run"]), self._site["epochs"][self._name]
        return SiteConnections(self._name, run, keys=keys, epoch=epoch)

    def _listen_on_network(self, connections: SiteConnections) -> None:
        """Use the inherited listener of this site, if there is one, and close the listeners of other sites."""
        for name, site in self._config["sites"].items():
            if site["listener"] is None:
                continue
            with socket.socket(fileno=site["listener"]) as listener:
                if name == self._name:
                    machine, port = listener.getsockname()[:2]
                    connections.listen(tcp_url(machine, port), listener.detach())

    def run(self) -> None:
        """Run the site until the coordinator ends it."""
        beacon = StatusBeacon(self._new_connections(), self._site["peers"][COORDINATOR])
        seed, continues = self._config["seed"], self._config["continues"]
        channels, start = self._channels, beacon.start
        run_site(self._checked, self._layout, self._name, channels, seed, start, continues)
        beacon.close()
