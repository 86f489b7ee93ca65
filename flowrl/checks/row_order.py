"""Checks that rows arrive in the order of time where a node needs that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.checks.ordering import is_feedback
from flowrl.core.errors import Problem
from flowrl.core.node import Facts
from flowrl.core.ports import In
from flowrl.graph.model import Edge, Graph, PortRef


def row_order_problems(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[Problem]:
    """Yield a problem for each input that needs ordered rows and is fed by rows in another order."""
    into = {edge.to: edge for edge in graph.edges if edge.kind == "stream"}
    for name, needs in ((name, found.needs_order) for name, found in facts.items()):
        for port in sorted(needs):
            edge = into.get(PortRef(name, port))
            culprit = _first_disorder(graph, facts, into, edge) if edge is not None else None
            if edge is not None and culprit is not None:
                what = (
                    f"{edge.to} needs rows in the order of time, each followed by the next step of its env up to "
                    f"`last`, and {culprit} gives single rows in another order"
                )
                hint = (
                    f"feed {name} without {culprit.node}, or put in its place what keeps the order, "
                    "such as a queue_buffer"
                )
                ends = (graph.nodes[name], graph.nodes[culprit.node])
                where = [edge.location, *(at for spec in ends for at in spec.locations())]
                yield Problem(str(graph.last_written(where)), what, hint)


def _first_disorder(
    graph: Graph, facts: Mapping[str, Facts], into: Mapping[PortRef, Edge], edge: Edge
) -> PortRef | None:
    """Return the output, among those from which a stream's rows come, that is nearest and not ordered."""
    todo, seen = list(edge.sources), set[PortRef]()
    while todo:
        output = todo.pop(0)
        if output in seen or output.node not in facts:
            continue
        seen.add(output)
        ordered = facts[output.node].ordered.get(output.port)
        if ordered is False:
            return output
        if ordered is None:
            todo += sources_of_first_input(graph, into, output.node)
    return None


def sources_of_first_input(
    graph: Graph, into: Mapping[PortRef, Edge], name: str
) -> tuple[PortRef, ...]:
    """The outputs that feed the first stream input of a node, whose order its own outputs keep."""
    ports = graph.nodes[name].cls.ports.items()
    edges = (into.get(PortRef(name, port)) for port, kind in ports if isinstance(kind, In))
    edge = next((edge for edge in edges if edge is not None), None)
    return () if edge is None or is_feedback(graph, edge) else edge.sources
