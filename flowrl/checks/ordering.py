"""Orders nodes: for firing along streams, and for description along streams and links."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from flowrl.checks.dependency_graph import DependencyGraph
from flowrl.core.errors import Problem
from flowrl.core.ports import In
from flowrl.graph.model import Edge, Graph, link_edges


def is_feedback(graph: Graph, edge: Edge) -> bool:
    """Return whether the edge ends in an input that has initial tokens."""
    port = graph.nodes[edge.to.node].port(edge.to.port)
    return isinstance(port, In) and port.initial is not None


def firing_order(
    graph: Graph, names: set[str], streams: Iterable[Edge], problems: list[Problem]
) -> list[str]:
    """Return the nodes in the order of their streams. A cycle without initial tokens is a problem."""
    edges = [e for e in streams if not is_feedback(graph, e)]
    order = topological_order(names, edges)
    left = names - set(order)
    if left:
        cycle, edge = find_cycle(left, edges)
        what = f"the cycle {' -> '.join(cycle)} has no initial token: each of its nodes waits for the one before"
        hint = (
            "close a loop through an input that begins with tokens, or carry state on a state edge"
        )
        problems.append(Problem(str(edge.location), what, hint))
    return [*order, *sorted(left)]


def topological_order(
    names: Iterable[str], edges: Iterable[Edge], rank: Callable[[str], Any] = str
) -> list[str]:
    """Return the names in topological order, ties by rank. Names on a cycle, or downstream of one, are left out."""
    return dependency_graph(names, edges).topological_order(rank)


def dependency_graph(names: Iterable[str], edges: Iterable[Edge]) -> DependencyGraph:
    """Return the graph of nodes with an arrow from each producer to its consumers."""
    return DependencyGraph(names, ((s.node, e.to.node) for e in edges for s in e.sources))


def find_cycle(left: set[str], edges: Iterable[Edge]) -> tuple[list[str], Edge]:
    """Return one cycle among the nodes that a topological order leaves out, and the edge that closes it."""
    inside = [e for e in edges if e.to.node in left]
    cycle = dependency_graph(sorted(left), inside).find_cycle()
    start = cycle.index(min(cycle))
    cycle = [*cycle[start:], *cycle[:start]]
    closing = next(
        e for e in inside if e.to.node == cycle[0] and cycle[-1] in {s.node for s in e.sources}
    )
    return [*cycle, cycle[0]], closing


def exclusive_services(graph: Graph) -> dict[str, list[str]]:
    """Return the exclusive services of each node.

    They do not fire, and are called only by the node or by its other exclusive services.
    """
    order = services_before_clients(graph)
    clients = _clients_of_services(graph, order)
    return {name: _called_only_by({name}, clients) for name in order}


def exclusive_services_of(graph: Graph, nodes: Collection[str]) -> list[str]:
    """Return the services that do not fire, and are called only by these nodes or by other such services."""
    clients = _clients_of_services(graph, services_before_clients(graph))
    return _called_only_by(nodes, clients)


def _clients_of_services(graph: Graph, order: Sequence[str]) -> dict[str, set[str]]:
    """Return the clients of each service that does not fire; services come before those that they call."""
    clients: dict[str, set[str]] = {}
    for edge in link_edges(graph):
        clients.setdefault(edge.source.node, set()).add(edge.to.node)
    services = [n for n in reversed(order) if n in clients and not graph.nodes[n].fires]
    return {name: clients[name] for name in services}


def _called_only_by(nodes: Collection[str], clients: Mapping[str, set[str]]) -> list[str]:
    found = set(nodes)
    for service, callers in clients.items():
        if callers <= found:
            found.add(service)
    return [name for name in reversed([*clients]) if name in found and name not in nodes]


def services_before_clients(graph: Graph) -> list[str]:
    """Return all nodes, each after the services that it calls, otherwise in the order of the file."""
    rank = {name: number for number, name in enumerate(graph.nodes)}
    return topological_order(graph.nodes, link_edges(graph), rank.__getitem__)
