"""Topological order: of firings along streams, and of descriptions along streams and links."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from flowrl.errors import Problem
from flowrl.graph import Edge, Graph
from flowrl.ports import In


def is_feedback(graph: Graph, edge: Edge) -> bool:
    """Whether the edge ends in an input that has initial tokens."""
    port = graph.nodes[edge.to.node].port(edge.to.port)
    return isinstance(port, In) and port.initial is not None


def firing_order(
    graph: Graph, names: set[str], streams: Iterable[Edge], problems: list[Problem]
) -> list[str]:
    """Nodes in the order of their streams; a cycle without initial tokens is a problem."""
    edges = [e for e in streams if not is_feedback(graph, e)]
    order = topological(names, edges)
    left = names - set(order)
    if left:
        ring, edge = a_cycle(left, edges)
        what = f"the cycle {' -> '.join(ring)} has no initial token: each of its nodes waits for the one before"
        hint = (
            "close a loop through an input that begins with tokens, or carry state on a state edge"
        )
        problems.append(Problem(str(edge.mark), what, hint))
    return [*order, *sorted(left)]


def topological(
    names: Iterable[str], edges: Iterable[Edge], rank: Callable[[str], Any] = str
) -> list[str]:
    """The names so that no edge leads back, ties by rank; what lies on a cycle or behind one is left out."""
    waits = dict.fromkeys(names, 0)
    after: dict[str, list[str]] = {n: [] for n in waits}
    for edge in edges:
        for source in edge.sources:
            after[source.node].append(edge.to.node)
            waits[edge.to.node] += 1
    ready = [(rank(n), n) for n, count in waits.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        order.append(heapq.heappop(ready)[1])
        for later in after[order[-1]]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, (rank(later), later))
    return order


def a_cycle(left: set[str], edges: Iterable[Edge]) -> tuple[list[str], Edge]:
    """One cycle among nodes that a topological order leaves out, and the edge that closes it."""
    before: dict[str, Edge] = {}
    for edge in edges:
        if edge.to.node in left and any(s.node in left for s in edge.sources):
            before.setdefault(edge.to.node, edge)
    name, seen = min(left), dict[str, None]()
    while name not in seen:
        seen[name] = None
        name = _source_in(left, before[name])
    ring = list(seen)[list(seen).index(name) :]
    start = ring.index(min(ring))
    forward = [*reversed([*ring[start + 1 :], *ring[: start + 1]])]
    return [*forward, forward[0]], before[forward[0]]


def _source_in(left: set[str], edge: Edge) -> str:
    return next(s.node for s in edge.sources if s.node in left)


def services_first(graph: Graph) -> list[str]:
    """All nodes, each after the services that it calls, else in the order of the file."""
    place = {name: at for at, name in enumerate(graph.nodes)}
    links = [e for e in graph.edges if e.kind == "link"]
    return topological(graph.nodes, links, place.__getitem__)
