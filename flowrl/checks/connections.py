"""Checks connections: required ports without an edge, services with too many clients, cycles of links."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.checks.ordering import find_cycle, topological_order
from flowrl.core.errors import Problem
from flowrl.core.ports import ANY, In, Input, Link, Out, Output, Port, Service, StateIn, StateOut
from flowrl.graph.model import Edge, Graph, NodeSpec, PortRef, link_edges

_PORT_NOUNS = {  # what a port is called in a message
    In: "input",
    StateIn: "state input",
    Link: "link",
    Out: "output",
    StateOut: "state output",
    Service: "service",
}


def connection_problems(graph: Graph, incomplete: frozenset[str]) -> Iterator[Problem]:
    """Problems of connections. Ports of `incomplete` nodes are not checked: they may lack an edge that has one."""
    connected_inputs = {e.to for e in graph.edges}
    connected_outputs = {source for e in graph.edges for source in e.sources}
    for name, spec in graph.nodes.items():
        for port, kind in spec.cls.ports.items():
            ref = PortRef(name, port)
            if kind.optional or name in incomplete:
                continue
            if isinstance(kind, Input) and ref not in connected_inputs:
                yield _unconnected_input(graph, spec, port, kind)
            elif isinstance(kind, Output) and ref not in connected_outputs:
                yield _unconnected_output(graph, spec, port, kind)
    yield from _shared_service_problems(graph)
    yield from _link_cycle_problems(graph)


def _unconnected_input(graph: Graph, spec: NodeSpec, port: str, kind: Input) -> Problem:
    fits = _fitting_ports(graph, spec.name, kind, Output)
    arrow = "<->" if isinstance(kind, Link) else "->"
    hint = f"no node of the graph gives '{kind.type}'"
    if fits:
        hint = f"add '{fits[0]} {arrow} {spec.name}.{port}'"
    what = (
        f"nodes.{spec.name}: the {_PORT_NOUNS[type(kind)]} '{port}' ({kind.type}) is not connected"
    )
    return Problem(str(spec.location()), what, hint)


def _unconnected_output(graph: Graph, spec: NodeSpec, port: str, kind: Output) -> Problem:
    fits = _fitting_ports(graph, spec.name, kind, Input)
    arrow = "<->" if isinstance(kind, Service) else "->"
    hint = "remove the node, or add a consumer"
    if fits:
        hint = f"add '{spec.name}.{port} {arrow} {fits[0]}'"
    what = (
        f"nodes.{spec.name}: the {_PORT_NOUNS[type(kind)]} '{port}' ({kind.type}) is not connected"
    )
    return Problem(str(spec.location()), what, hint)


def _fitting_ports(graph: Graph, name: str, kind: Port, side: object) -> list[str]:
    """Ports of other nodes that could be the other end of such a connection. Ports of the same type come first."""
    found = [
        (port.type != kind.type, f"{node}.{n}")
        for node, spec in graph.nodes.items()
        for n, port in spec.cls.ports.items()
        if node != name and isinstance(port, side) and port.kind == kind.kind  # type: ignore[arg-type]
        if port.type == kind.type or (kind.kind == "stream" and ANY in (port.type, kind.type))
    ]
    return [text for _, text in sorted(found, key=lambda f: f[0])]


def _shared_service_problems(graph: Graph) -> Iterator[Problem]:
    """Stateful services with more than one client."""
    calls: dict[PortRef, list[Edge]] = {}
    for edge in link_edges(graph):
        calls.setdefault(edge.source, []).append(edge)
    for ref, edges in calls.items():
        service = graph.nodes[ref.node].port(ref.port)
        if isinstance(service, Service) and service.stateful and len(edges) > 1:
            clients = ", ".join(sorted(str(e.to) for e in edges))
            what = f"the service {ref} has {len(edges)} clients ({clients}); a service that keeps state has one"
            hint = f"give each client a node of its own such as '{ref.node}'"
            yield Problem(str(edges[-1].location), what, hint)


def _link_cycle_problems(graph: Graph) -> Iterator[Problem]:
    calls = link_edges(graph)
    left = graph.nodes.keys() - set(topological_order(graph.nodes, calls))
    if left:
        cycle, edge = find_cycle(left, calls)
        what = f"the links form a cycle: {' <-> '.join(cycle)}"
        yield Problem(str(edge.location), what, "remove one of them")
