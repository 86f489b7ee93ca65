"""The ways of an edge: one for each pair of replicas that talk."""

from __future__ import annotations

from flowrl.core.context import instance_key
from flowrl.graph.model import Edge, Graph

ReplicaPair = tuple[int, int, int]  # source number, its replica, the consumer's replica


def replica_pairs_of(graph: Graph, edge: Edge) -> list[ReplicaPair]:
    """All ways of an edge."""
    consumers = range(graph.nodes[edge.to.node].replicas)
    if edge.kind == "state":
        return [(0, 0, b) for b in consumers]
    if edge.kind == "link":
        return [(0, b, b) for b in consumers]
    return [
        (number, a, b)
        for number, source in enumerate(edge.sources)
        for a in range(graph.nodes[source.node].replicas)
        for b in consumers
        if graph.nodes[source.node].replicas != len(consumers) or a == b  # equal numbers pair off
    ]


def pair_endpoints(edge: Edge, lane: ReplicaPair) -> tuple[str, str]:
    """The instances at both ends."""
    return instance_key(edge.sources[lane[0]].node, lane[1]), instance_key(edge.to.node, lane[2])


def pair_label(edge: Edge, lane: ReplicaPair) -> str:
    """What a way is called."""
    gives, takes = pair_endpoints(edge, lane)
    arrow = "<->" if edge.kind == "link" else "->"
    return f"{gives}.{edge.sources[lane[0]].port} {arrow} {takes}.{edge.to.port}"
