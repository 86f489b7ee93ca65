"""Finds which nodes fire in rounds, and which are paced by a state with `every: n`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.checks.ordering import dependency_graph
from flowrl.core.errors import Problem
from flowrl.graph.model import Edge, Graph

Components = Mapping[str, str]  # each node's component, by the name of one of its nodes


def stream_components(graph: Graph) -> dict[str, str]:
    """Return the component of each node: nodes that streams or links join are in one component."""
    joined = dependency_graph(graph.nodes, [e for e in graph.edges if e.kind != "state"])
    return {
        name: first
        for component in joined.components()
        for first in [min(component)]
        for name in component
    }


def nodes_paced_by(graph: Graph, name: str) -> set[str]:
    """Return the nodes that fire after a node's versions, directly or through other paced nodes."""
    components = stream_components(graph)
    found: set[str] = set()
    todo = {name}
    while todo:
        pacing = [e for e in graph.edges if e.every is not None and e.source.node in todo]
        into = {components[edge.to.node] for edge in pacing}
        todo = {n for n in graph.nodes if components[n] in into} - found
        found |= todo
    return {n for n in found if graph.nodes[n].fires}


def paced_components(
    graph: Graph, components: Components, incomplete: frozenset[str], problems: list[Problem]
) -> dict[str, Edge]:
    """Return the components that are paced by a state with `every`, each with the edge of that state.

    An edge of an `incomplete` node may be missing because of a problem that was reported before.
    """
    states = [e for e in graph.edges if e.kind == "state"]
    found: dict[str, Edge] = {}
    for edge in states:
        if edge.every is not None:
            component = components[edge.to.node]
            clash = list(_clashing_paces(edge, components, found.get(component)))
            problems.extend(clash)
            if not clash:
                found[component] = edge
        if edge.lag and edge.latest:
            problems.append(_exclusive_options(edge, "lag", "latest"))
    problems.extend(_pace_cycle_problems(components, found))
    driven = _stream_nodes(graph) | incomplete
    for edge in states:
        fires_in_rounds = edge.every is None and components[edge.to.node] not in found
        if fires_in_rounds and edge.to.node not in driven:
            problems.append(_missing_pace(edge))
    return found


def _clashing_paces(edge: Edge, components: Components, before: Edge | None) -> Iterator[Problem]:
    location, to, source = str(edge.location), edge.to.node, edge.source.node
    if components[source] == components[to]:
        what = f"{edge}: 'every' is for nodes that nothing but state drives, and streams or links join {to} to {source}"
        yield Problem(location, what, "use 'lag' here")
    elif before is not None and (before.source, before.every) != (edge.source, edge.every):
        what = f"{edge}: another pace drives {to} already ({before}, every {before.every})"
        yield Problem(location, what, "leave 'every' out here")
    for option in ("lag", "latest"):
        if getattr(edge, option):
            yield _exclusive_options(edge, option, "every")


def _exclusive_options(edge: Edge, one: str, other: str) -> Problem:
    what = f"{edge}: '{one}' and '{other}' exclude each other"
    return Problem(str(edge.location), what, "leave one out")


def _pace_cycle_problems(components: Components, found: dict[str, Edge]) -> Iterator[Problem]:
    """Yield a problem for each component whose paces do not lead back to a node that fires in rounds.

    These components are removed from `found`.
    """
    for component in list(found):
        seen, at = {component}, component
        while at in found and (at := components[found[at].source.node]) not in seen:
            seen.add(at)
        if at in found and at == component:
            edge = found.pop(component)
            what = f"{edge}: the nodes pace each other in a cycle, and nothing else drives them"
            yield Problem(str(edge.location), what, "let one of them follow a learner")


def _stream_nodes(graph: Graph) -> set[str]:
    streams = [e for e in graph.edges if e.kind == "stream"]
    return {ref.node for e in streams for ref in (*e.sources, e.to)}


def _missing_pace(edge: Edge) -> Problem:
    what = f"{edge}: nothing but this state drives {edge.to.node}, so it needs a pace"
    return Problem(
        str(edge.location), what, f"write '{edge.source.node} -> {edge.to}: {{every: 100}}'"
    )
