"""Checks connections: required ports without an edge, services with too many clients, cycles of links."""

from __future__ import annotations

from collections.abc import Container, Iterator

from flowrl.checks.ordering import find_cycle, topological_order
from flowrl.core.errors import Problem
from flowrl.core.ports import ANY, In, Input, Link, Out, Port, Service, StateIn, StateOut
from flowrl.graph.model import Edge, Graph, NodeSpec, PortRef, link_edges

_PORT_NOUNS = {  # names of port types in messages
    In: "input",
    StateIn: "state input",
    Link: "link",
    Out: "output",
    StateOut: "state output",
    Service: "service",
}


def connection_problems(graph: Graph, incomplete: frozenset[str]) -> Iterator[Problem]:
    """Yield the problems of connections.

    Ports of `incomplete` nodes are not checked: an edge with a problem of its own may be missing there.
    """
    connected = {ref for edge in graph.edges for ref in (*edge.sources, edge.to)}
    ports = PortIndex(graph, connected)
    # By outputs of streams in extended files: what replaces these streams.
    replacing = {r: e for e in graph.edges if e.kind == "stream" for r in e.replaced_sources}
    for name, spec in graph.nodes.items():
        for port, kind in spec.cls.ports.items():
            is_checked = not kind.optional and name not in incomplete
            ref = PortRef(name, port)
            if not is_checked or ref in connected or _has_substitute(spec, kind, connected):
                continue
            if edge := replacing.get(ref):
                yield _replaced_output(edge, ref)
            else:
                bypassed = _bypassing_edge(graph, spec, kind)
                yield _unconnected_port(ports, spec, port, kind, bypassed)
    yield from _alike_input_problems(graph)
    yield from _shared_service_problems(graph)
    yield from _link_cycle_problems(graph)


def _alike_input_problems(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for each input that takes the tokens of another one from which they must differ."""
    into = {edge.to: edge for edge in graph.edges if edge.kind == "stream"}
    for to, edge in into.items():
        kind = graph.nodes[to.node].cls.ports.get(to.port)
        other = into.get(PortRef(to.node, kind.unlike)) if isinstance(kind, In) else None
        shared = [] if other is None else [s for s in edge.sources if s in other.sources]
        if other is not None and shared:
            what = (
                f"{edge}: {shared[0]} also goes to {other.to}, and the tokens of both must differ"
            )
            hint = f"connect something else to {to.port}, such as demonstrations"
            yield Problem(str(edge.location), what, hint)


def _has_substitute(spec: NodeSpec, kind: Port, connected: Container[PortRef]) -> bool:
    """Whether a node shows another state in the place of this one, such as averaged weights."""
    others = (
        p
        for p, other in spec.cls.ports.items()
        if isinstance(other, StateOut) and other.type == kind.type
    )
    return isinstance(kind, StateOut) and any(PortRef(spec.name, p) in connected for p in others)


def _replaced_output(edge: Edge, ref: PortRef) -> Problem:
    """The problem of an output whose only consumer takes another stream now."""
    before = ", ".join(map(str, edge.replaced_sources))
    what = f"nodes.{ref.node}: the output '{ref.port}' is not connected, as this edge replaces '{before} -> {edge.to}'"
    both = ", ".join(map(str, (*edge.replaced_sources, *edge.sources)))
    return Problem(
        str(edge.location), what, f"write '{both} -> {edge.to}' to keep both, or remove {ref.node}"
    )


def _bypassing_edge(graph: Graph, spec: NodeSpec, kind: Port) -> Edge | None:
    """The stream from what feeds a node to an input that its output could feed, past the node."""
    if not isinstance(kind, Out):
        return None
    streams = [edge for edge in graph.edges if edge.kind == "stream"]
    sources = [edge.sources for edge in streams if edge.to.node == spec.name]
    for edge in streams:
        taken = graph.nodes[edge.to.node].port(edge.to.port).type
        if edge.to.node != spec.name and edge.sources in sources and taken in (kind.type, ANY):
            return edge
    return None


def _unconnected_port(
    ports: PortIndex, spec: NodeSpec, port: str, kind: Port, bypassing: Edge | None
) -> Problem:
    """The problem of a port without an edge. Where a stream bypasses the node, it is to pass through the node."""
    is_input = isinstance(kind, Input)
    candidate = ports.find_partner(spec.name, kind)
    own, arrow = f"{spec.name}.{port}", "<->" if kind.kind == "link" else "->"
    if bypassing is not None:
        first = ", ".join(source.node for source in bypassing.sources)
        hint = f"write '{first} -> {spec.name} -> {bypassing.to}' in place of '{bypassing}'"
    elif candidate:
        ends = (candidate, own) if is_input else (own, candidate)
        hint = f"add '{ends[0]} {arrow} {ends[1]}'"
    elif is_input:
        hint = f"no node of the graph gives '{kind.type}'"
    else:
        hint = "remove the node, or add a consumer"
    noun = _PORT_NOUNS[type(kind)]
    what = f"nodes.{spec.name}: the {noun} '{port}' ({kind.type}) is not connected"
    return Problem(str(spec.location()), what, hint)


class PortIndex:
    """The ports of a graph by side, kind and type, so that a partner is found without a search through all nodes.

    Of inputs, those that are not connected come first, and of outputs, which may feed several inputs, those that are
    not optional. Only the first ports of two nodes are kept under each key: one that is not the asking node's own is
    enough.
    """

    def __init__(self, graph: Graph, connected: Container[PortRef]) -> None:
        self._found: dict[tuple[bool, str, str | None], list[PortRef]] = {}
        every = [
            (PortRef(node, name), port)
            for node, spec in graph.nodes.items()
            for name, port in spec.cls.ports.items()
        ]

        def rank(found: tuple[PortRef, Port]) -> tuple[bool, bool]:
            ref, port = found
            marks = ref in connected, port.optional
            return marks if isinstance(port, Input) else marks[::-1]

        for ref, port in sorted(every, key=rank):
            for port_type in (port.type, None):  # None: of whatever type
                key = (isinstance(port, Input), port.kind, port_type)
                refs = self._found.setdefault(key, [])
                if len({other.node for other in refs}) < 2:
                    refs.append(ref)

    def find_partner(self, node: str, port: Port) -> PortRef | None:
        """Return a port of another node that this port could be connected to, one of the same type if there is any."""
        types: list[str | None] = [port.type]
        if port.kind == "stream":
            types.append(None if port.type == ANY else ANY)
        for port_type in types:
            for ref in self._found.get((not isinstance(port, Input), port.kind, port_type), ()):
                if ref.node != node:
                    return ref
        return None


def _shared_service_problems(graph: Graph) -> Iterator[Problem]:
    """Yield a problem for each stateful service with more than one client."""
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
