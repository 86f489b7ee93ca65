"""Makes what joins the instances of a site: queues, inputs of states, and services.

A scheduler is given a complete factory and makes its instances with it. `LocalEdgeFactory` serves a site on which all
instances live, `flowrl.runtime.remote.SiteEdgeFactory` one of several sites.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from flowrl.checks.check import CheckedGraph
from flowrl.core.context import Context
from flowrl.core.errors import NodeError
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.core.state import EMPTY_CLOCK
from flowrl.graph.model import Edge, PortRef
from flowrl.graph.replica_pairs import ReplicaPair, replica_pairs_of
from flowrl.runtime.site_state import SiteState
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.streams import DropOldestQueue, Push, Queue, Take, Token

Replica = tuple[str, int]  # a node and a replica's number
Versions = Mapping[PortRef, StateVersions]  # of the states whose nodes live on this site


class EdgeFactory(Protocol):
    """Makes the edges of one site's instances."""

    @property
    def site(self) -> SiteState:
        """The state of the site."""

    def is_local(self, node: str, replica: int) -> bool:
        """Whether an instance lives on this site."""

    # streams

    def make_queues(self, edge: Edge) -> dict[ReplicaPair, Queue]:
        """The queues of a stream edge, one for each replica pair with an end on this site.

        With `merge: any`, all pairs with the same consumer share one queue.
        """

    # states

    def state_input(self, edge: Edge, replica: int, versions: Versions) -> Take:
        """Takes the version that a consumer on this site reads."""

    def round_end_readers(self, edge: Edge, versions: StateVersions) -> list[Push]:
        """For each consumer on another site, what sends it the version with which a round ended."""

    def paced_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        """For each consumer on another site, what sends it the version that paces it."""

    # firings of nodes that may lack tokens: their number in a round is not known in advance

    def firing_readers(self, node: str) -> list[Push]:
        """What notifies other sites of each firing of a node on this site, where it paces something there."""

    def remote_firings(self, node: str) -> Callable[[], bool]:
        """Whether a node on another site has fired once more. Each call takes one notification."""

    # links

    def client_stub(
        self, edge: Edge, replica: int, contexts: dict[Replica, Context], fresh: bool
    ) -> Any:
        """What a client calls in place of a service on another site; None if the service lives on this site.

        What the service records is emitted into `contexts`. With `fresh`, a new service is made.
        """

    def serve_remote_clients(
        self,
        service: Replica,
        node: Callable[[], Node],
        renew: Callable[[], None],
        contexts: dict[Replica, Context],
    ) -> None:
        """Let clients on other sites call a service of this site. `node` returns the service, `renew` replaces it."""


class LocalEdgeFactory:
    """The `EdgeFactory` of a site on which all instances live."""

    def __init__(self, checked: CheckedGraph) -> None:
        self._checked = checked
        self.site = SiteState()

    def is_local(self, node: str, replica: int) -> bool:
        return True

    def make_queues(self, edge: Edge) -> dict[ReplicaPair, Queue]:
        pairs = replica_pairs_of(self._checked.graph, edge)
        if edge.merge != "any":
            return {pair: local_queue(self._checked, edge) for pair in pairs}
        consumers = {pair[2] for pair in pairs}
        merged = {b: local_queue(self._checked, edge, len(pairs)) for b in consumers}
        return {pair: merged[pair[2]] for pair in pairs}

    def state_input(self, edge: Edge, replica: int, versions: Versions) -> Take:
        return local_state_input(edge, versions[edge.source])

    def round_end_readers(self, edge: Edge, versions: StateVersions) -> list[Push]:
        return []

    def paced_readers(self, edge: Edge, versions: StateVersions) -> list[Callable[[], None]]:
        return []

    def firing_readers(self, node: str) -> list[Push]:
        return []

    def remote_firings(self, node: str) -> Callable[[], bool]:
        return lambda: False

    def client_stub(
        self, edge: Edge, replica: int, contexts: dict[Replica, Context], fresh: bool
    ) -> Any:
        return None

    def serve_remote_clients(
        self,
        service: Replica,
        node: Callable[[], Node],
        renew: Callable[[], None],
        contexts: dict[Replica, Context],
    ) -> None:
        return None


def local_queue(checked: CheckedGraph, edge: Edge, sources: int = 1) -> Queue:
    """A queue between instances of one site, with the initial tokens of its input."""
    capacity = checked.program.capacity[edge.to] * sources
    queue = DropOldestQueue(capacity) if edge.when_full == "drop_oldest" else deque()
    queue.extend(initial_tokens(checked, edge))
    return queue


def initial_tokens(checked: CheckedGraph, edge: Edge) -> list[Token]:
    """The tokens that lie on a feedback edge before round 0."""
    port = checked.graph.nodes[edge.to.node].port(edge.to.port)
    if not isinstance(port, In) or port.initial is None:
        return []
    try:
        return [(port.initial(), EMPTY_CLOCK) for _ in range(checked.program.initial[edge.to])]
    except Exception as error:
        doing = f"making the initial tokens of '{edge.to.port}'"
        raise NodeError(edge.to.node, doing, error) from error


def local_state_input(edge: Edge, versions: StateVersions) -> Take:
    """Takes a version of a state whose node lives on the same site."""
    return versions.round_end_view(edge.lag) if reads_round_ends(edge) else versions.newest_view()


def reads_round_ends(edge: Edge) -> bool:
    """Whether a consumer reads the versions with which rounds end, instead of the newest or one that paces it."""
    return not edge.latest and edge.every is None
