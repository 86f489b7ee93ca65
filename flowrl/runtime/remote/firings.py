"""Notifications of firings: sites that cannot count the firings of a node learn of each one by a message.

How often a node fires that may lack tokens follows from no schedule. The sites of the nodes that it paces are notified.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from flowrl.channels import ChannelLimits
from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens_anywhere
from flowrl.checks.pacing import nodes_paced_by
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.remote.edges import RemoteInput, RemoteOutput
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.streams import Push

LIMITS = ChannelLimits(tokens=256)  # of notifications


class RemoteFirings:
    """The notifications that a site sends to other sites, and those that it gets."""

    def __init__(
        self, checked: CheckedGraph, layout: SiteLayout, site: str, waits: SiteWaits
    ) -> None:
        self._graph, self._layout, self._site, self._waits = checked.graph, layout, site, waits
        self._inputs: dict[str, RemoteInput] = {}  # by the node that fires
        self._readers: dict[str, list[Push]] = {}
        for node in sorted(may_lack_tokens_anywhere(checked.program)):
            self._open_channels(node)

    def _open_channels(self, node: str) -> None:
        """Open the channels from a node to the sites of all nodes that it paces."""
        site_of, waits = self._layout.site_of, self._waits
        paced = nodes_paced_by(self._graph, node)
        source = site_of[node, 0]
        sites = {site for (name, _), site in site_of.items() if name in paced}
        if source == self._site:
            for site in sorted(sites - {source}):
                sender = waits.channels.open_sender(_channel(node, site), site, limits=LIMITS)
                output = RemoteOutput(waits, sender, waits.on_notify(node, sender))
                self._readers.setdefault(node, []).append(output.append)
        elif self._site in sites:
            receiver = waits.channels.open_receiver(
                _channel(node, self._site), source, limits=LIMITS
            )
            self._inputs[node] = RemoteInput(waits, receiver, waits.on_firings(node, receiver))

    def readers(self, node: str) -> list[Push]:
        """Return the functions that notify other sites of a firing of a node of this site."""
        return self._readers.get(node, [])

    def take_one(self, node: str) -> Callable[[], bool]:
        """Return a function that takes one notification of a firing of a node elsewhere, if there is one."""
        queue = self._inputs[node]
        return lambda: next(queue.take_arrived(), None) is not None

    @property
    def inputs(self) -> Collection[RemoteInput]:
        """The queues of notifications that come from other sites."""
        return self._inputs.values()

    @property
    def have_arrived(self) -> bool:
        """Whether there is a notification that was not taken."""
        return any(map(len, self._inputs.values()))


def _channel(node: str, site: str) -> str:
    return f"{node}?{site}"
