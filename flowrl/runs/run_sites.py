"""Where the sites of a run are: their layout, and the hosts that have joined the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flowrl.checks.check import CheckedGraph
from flowrl.checks.site_kinds import require_later_sites_elastic
from flowrl.checks.state_relays import with_relays
from flowrl.cluster.rendezvous import Rendezvous, settled_rendezvous
from flowrl.graph.host_assignment import local_warnings
from flowrl.graph.placement import resolve_placement
from flowrl.graph.places import MAIN
from flowrl.graph.site_layout import make_layout, resources_here, unmet_needs
from flowrl.graph.site_shares import host_places, placed_shares, without_hosts
from flowrl.machine.network_address import machine_id
from flowrl.runtime.sites.graph_transfer import graph_to_send, require_importable

if TYPE_CHECKING:
    from flowrl.cluster.run_hosts import RunHosts


class RunSites:
    """The sites of one run. A placement that does not fit the graph, or the rendezvous, is an error."""

    def __init__(
        self, checked: CheckedGraph, placement: str, rendezvous: Rendezvous | None
    ) -> None:
        self._checked = checked
        graph = checked.graph
        placed = resolve_placement(graph, placement)
        may_have_hosts = rendezvous is not None or graph.launch
        self._placed = placed if may_have_hosts else without_hosts(placed)
        self._here = resources_here(graph, self._placed)
        # Until hosts have joined, each place that is a host stands for one host.
        self.layout = make_layout(graph, self._placed, here=self._here)
        require_later_sites_elastic(checked, self.layout)
        shares = placed_shares(graph, self._placed)
        self.warnings = tuple(local_warnings(shares, self._here))  # of what this machine lacks
        self.hosts: RunHosts | None = None
        self._places = host_places(graph, self._placed)
        self.rendezvous = settled_rendezvous(self._places, rendezvous, graph.launch)
        if "process" in self.layout.kinds.values():  # on this machine or on a host
            require_importable(graph)

    @property
    def is_single(self) -> bool:
        """Whether this thread is the only site."""
        return list(self.layout.kinds) == [MAIN]

    @property
    def are_on_hosts(self) -> bool:
        return self.rendezvous is not None

    def open_to_hosts(self, folder: Path, show: Callable[[str], None]) -> None:
        """Let hosts join, and start those that are launched. `show` shows a line to the user."""
        from flowrl.cluster.run_hosts import open_to_hosts  # imported late, as it loads ZeroMQ

        assert self.rendezvous is not None
        sent, useful_hosts = graph_to_send(self._checked), len(self.layout.hosts)
        self.hosts = open_to_hosts(self.rendezvous, sent, folder, show, useful_hosts)

    def place_on_hosts(self, show: Callable[[str], None], before_poll: Callable[[], None]) -> None:
        """Wait for hosts, and decide which site is on which host. `before_poll` may raise, and so end the wait."""
        assert self.hosts is not None
        show(self.hosts.arrival.text)
        graph, placed = self._checked.graph, self._placed
        lacking = partial(unmet_needs, graph, placed)
        hosts = self.hosts.arrival.wait(self._places, lacking, before_poll)
        layout = make_layout(graph, placed, hosts, self._here)
        machine_ids = {host.name: host.machine_id for host in hosts}
        self.layout = with_relays(self._checked, layout, {**machine_ids, "": machine_id()})
