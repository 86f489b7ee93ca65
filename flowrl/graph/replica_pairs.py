"""The replica pairs of an edge: each producer replica with each consumer replica that it is connected to."""

from __future__ import annotations

from flowrl.core.context import instance_key
from flowrl.graph.model import Edge, Graph

ReplicaPair = tuple[int, int, int]  # the source's number, its replica, the consumer's replica


def replica_pairs_of(graph: Graph, edge: Edge) -> list[ReplicaPair]:
    consumers = range(graph.nodes[edge.to.node].replicas)
    if edge.kind == "state":
        return [(0, 0, b) for b in consumers]
    if edge.kind == "link":
        return [(0, b, b) for b in consumers]
    return [
        (number, a, b)
        for number, source in enumerate(edge.sources)
        for replicas in [graph.nodes[source.node].replicas]
        for a in range(replicas)
        for b in consumers
        if a == b or replicas != len(consumers)  # equal numbers are connected one to one
    ]


def pair_endpoints(edge: Edge, pair: ReplicaPair) -> tuple[str, str]:
    """The keys of the instances at both ends."""
    return instance_key(edge.sources[pair[0]].node, pair[1]), instance_key(edge.to.node, pair[2])


def pair_label(edge: Edge, pair: ReplicaPair) -> str:
    """The name of a replica pair in messages: `a#1.out -> b.data`."""
    producer, consumer = pair_endpoints(edge, pair)
    arrow = "<->" if edge.kind == "link" else "->"
    return f"{producer}.{edge.sources[pair[0]].port} {arrow} {consumer}.{edge.to.port}"


def relay_label(edge: Edge, relay: str) -> str:
    """The name of a state edge on its way to a relay: `a.weights -> b.weights (relay@host)`."""
    return f"{edge.source} -> {edge.to} ({relay})"
