"""Makes the edges between the instances of a site: queues, inputs of states, and services.

A scheduler makes its instances with a factory. `EdgeFactory` makes local edges; `SiteEdgeFactory`, in
`flowrl.runtime.remote.edge_factory`, also makes edges to other sites.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import lags_behind_firings
from flowrl.checks.service_paths import ServicePath
from flowrl.core.context import Context
from flowrl.core.errors import NodeError
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.core.saved_state import SavedState
from flowrl.core.state import EMPTY_CLOCK
from flowrl.graph.model import Edge, PortRef
from flowrl.graph.replica_pairs import ReplicaPair, replica_pairs_of
from flowrl.runtime.group_exchange import GroupExchange
from flowrl.runtime.half_precision import EdgeRounding
from flowrl.runtime.site_state import SiteState
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import DropOldestQueue, Push, Queue, Take, Token

Replica = tuple[str, int]  # a node and the index of a replica
Versions = Mapping[PortRef, StateVersions]  # of the states whose nodes live on the site


@dataclass(frozen=True, slots=True)
class LocalService:
    """A service of this site, for clients on other sites."""

    replica: Replica
    node: Callable[[], Node]  # returns the service, which changes when it is recreated
    recreate: Callable[[], Node]
    # The state of the last service of a path that begins with this one.
    save: Callable[[ServicePath], SavedState]
    load: Callable[[ServicePath, SavedState], None]


class EdgeFactory:
    """Makes the edges of one site's instances. This class serves a site on which all instances live."""

    def __init__(self, checked: CheckedGraph) -> None:
        self.site = SiteState()
        self._checked = checked
        self._roundings: dict[PortRef, EdgeRounding] = {}

    def is_local(self, node: str, replica: int) -> bool:
        """Return whether an instance lives on this site."""
        return True

    def rounding(self, edge: Edge) -> EdgeRounding | None:
        """Return what rounds the numbers that an edge carries, if it does so."""
        if edge.dtype == "float32":
            return None
        return self._roundings.setdefault(edge.to, EdgeRounding(edge))

    def group_exchange(self, node: str) -> GroupExchange:
        """Return the exchange of a group that has replicas on this site."""
        return GroupExchange()

    # streams

    def make_queues(self, edge: Edge) -> dict[ReplicaPair, Queue]:
        """Return the queues of a stream edge, one for each replica pair with an end on this site.

        With `merge: any`, all pairs with the same consumer share one queue.
        """
        pairs = replica_pairs_of(self._checked.graph, edge)
        if edge.merge != "any":
            return {pair: self._local_queue(edge) for pair in pairs}
        consumers = {pair[2] for pair in pairs}
        merged = {consumer: self._local_queue(edge, len(pairs)) for consumer in consumers}
        return {pair: merged[pair[2]] for pair in pairs}

    def _local_queue(self, edge: Edge, sources: int = 1) -> Queue:
        """Return a queue between instances of this site, with the initial tokens of its input."""
        capacity = self._checked.program.capacity[edge.to] * sources
        queue = DropOldestQueue(capacity) if edge.when_full == "drop_oldest" else deque()
        queue.extend(self._initial_tokens(edge))
        return queue

    def _initial_tokens(self, edge: Edge) -> list[Token]:
        """Return the tokens that are on a feedback edge before round 0."""
        port = self._checked.graph.nodes[edge.to.node].port(edge.to.port)
        if not isinstance(port, In) or port.initial is None:
            return []
        number = self._checked.program.initial[edge.to]
        try:
            return [(port.initial(), EMPTY_CLOCK) for _ in range(number)]
        except Exception as error:
            doing = f"making the initial tokens of '{edge.to.port}'"
            raise NodeError(edge.to.node, doing, error) from error

    # states

    def state_input(self, edge: Edge, replica: int, versions: Versions) -> Take:
        """Return the function by which a consumer on this site takes the version that it reads."""
        take = self._local_view(edge, versions[edge.source])
        rounding = self.rounding(edge)
        return take if rounding is None else rounding.rounded_take(take)

    def _local_view(self, edge: Edge, versions: StateVersions) -> Take:
        if lags_behind_firings(self._checked.program, edge):
            return versions.lagged_view(edge.lag)
        if reads_round_ends(edge):
            return versions.round_end_view(edge.lag)
        return versions.newest_view(whole=edge.every is not None)

    def round_end_readers(self, edge: Edge, versions: StateVersions) -> list[Push]:
        """Return for each consumer on another site the function that sends it the version with which a round ended."""
        return []

    def paced_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        """Return for each consumer on another site the function that sends it the version that paces it."""
        return []

    def lagged_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        """Return for each consumer on another site the function that sends it the version of a firing."""
        return []

    # firings of nodes that may lack tokens: their number in a round is not known in advance

    def firing_readers(self, node: str) -> list[Push]:
        """Return the functions that notify other sites of a firing of a node, if it paces nodes there."""
        return []

    def remote_firings(self, node: str) -> Callable[[], bool]:
        """Return a function that takes one notification of a firing of a node on another site, if there is one."""
        return lambda: False

    # links

    def client_stub(
        self, edge: Edge, replica: int, contexts: dict[Replica, Context], fresh: bool
    ) -> Any:
        """Return the stub of a service on another site, or None if the service lives on this site.

        The records of the service are emitted into `contexts`. With `fresh`, the service is recreated.
        """
        return None

    def save_remote_service(self, edge: Edge, path: ServicePath, replica: int) -> SavedState:
        """Return the state of the last service of a path that begins with the service of this link, elsewhere."""
        raise AssertionError("all services live on this site")

    def load_remote_service(
        self, edge: Edge, path: ServicePath, replica: int, saved: SavedState
    ) -> None:
        """Load the state of the last service of such a path."""
        raise AssertionError("all services live on this site")

    def serve_remote_clients(self, service: LocalService, contexts: dict[Replica, Context]) -> None:
        """Let clients on other sites call a service of this site."""


def reads_round_ends(edge: Edge) -> bool:
    """Return whether a consumer reads neither the newest version, nor one that paces it.

    Then it reads the version with which a round ended, or one that lags behind firings of a paced node.
    """
    return not edge.latest and edge.every is None
