"""Connections: ports that must be connected and are not, and links that do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.checks.ordering import find_cycle, topological_order
from flowrl.core.errors import Problem
from flowrl.core.ports import ANY, In, Input, Link, Out, Output, Port, Service, StateIn, StateOut
from flowrl.graph.model import Edge, Graph, NodeSpec, PortRef, link_edges

_WORDS = {  # what a port is called in a message
    In: "input",
    StateIn: "state input",
    Link: "link",
    Out: "output",
    StateOut: "state output",
    Service: "service",
}


def connection_problems(graph: Graph, incomplete: frozenset[str]) -> Iterator[Problem]:
    """Problems of connections. Ports of `incomplete` nodes are not checked: they may lack an edge that has one."""
    fed = {e.to for e in graph.edges}
    taken = {source for e in graph.edges for source in e.sources}
    for name, spec in graph.nodes.items():
        for port, kind in spec.cls.ports.items():
            ref = PortRef(name, port)
            if kind.optional or name in incomplete:
                continue
            if isinstance(kind, Input) and ref not in fed:
                yield _unfed(graph, spec, port, kind)
            elif isinstance(kind, Output) and ref not in taken:
                yield _untaken(graph, spec, port, kind)
    yield from _shared_services(graph)
    yield from _link_circle(graph)


def _unfed(graph: Graph, spec: NodeSpec, port: str, kind: Input) -> Problem:
    fits = _fitting(graph, spec.name, kind, Output)
    arrow = "<->" if isinstance(kind, Link) else "->"
    hint = f"no node of the graph gives '{kind.type}'"
    if fits:
        hint = f"add '{fits[0]} {arrow} {spec.name}.{port}'"
    what = f"nodes.{spec.name}: the {_WORDS[type(kind)]} '{port}' ({kind.type}) is not connected"
    return Problem(str(spec.location()), what, hint)


def _untaken(graph: Graph, spec: NodeSpec, port: str, kind: Output) -> Problem:
    fits = _fitting(graph, spec.name, kind, Input)
    arrow = "<->" if isinstance(kind, Service) else "->"
    hint = "remove the node, or add one that takes it"
    if fits:
        hint = f"add '{spec.name}.{port} {arrow} {fits[0]}'"
    what = f"nodes.{spec.name}: nobody takes the {_WORDS[type(kind)]} '{port}' ({kind.type})"
    return Problem(str(spec.location()), what, hint)


def _fitting(graph: Graph, name: str, kind: Port, side: object) -> list[str]:
    """Ports of other nodes at the other side of such a connection, those of the very type first."""
    found = [
        (port.type != kind.type, f"{node}.{n}")
        for node, spec in graph.nodes.items()
        for n, port in spec.cls.ports.items()
        if node != name and isinstance(port, side) and port.kind == kind.kind  # type: ignore[arg-type]
        if port.type == kind.type or (kind.kind == "stream" and ANY in (port.type, kind.type))
    ]
    return [text for _, text in sorted(found, key=lambda f: f[0])]


def _shared_services(graph: Graph) -> Iterator[Problem]:
    """A stateful service has one client."""
    calls: dict[PortRef, list[Edge]] = {}
    for edge in link_edges(graph):
        calls.setdefault(edge.source, []).append(edge)
    for ref, edges in calls.items():
        service = graph.nodes[ref.node].port(ref.port)
        if isinstance(service, Service) and service.stateful and len(edges) > 1:
            clients = ", ".join(sorted(str(e.to) for e in edges))
            what = f"the service {ref} has {len(edges)} clients ({clients}); it keeps state, so it can have one"
            hint = f"give each client a node of its own such as '{ref.node}'"
            yield Problem(str(edges[-1].location), what, hint)


def _link_circle(graph: Graph) -> Iterator[Problem]:
    calls = link_edges(graph)
    left = graph.nodes.keys() - set(topological_order(graph.nodes, calls))
    if left:
        ring, edge = find_cycle(left, calls)
        what = f"the links {' <-> '.join(ring)} call each other in a circle"
        yield Problem(str(edge.location), what, "cut one")
