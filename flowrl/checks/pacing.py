"""Finds which nodes fire in rounds, and which are paced by a state with `every: n`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.checks.ordering import dependency_graph
from flowrl.core.errors import Problem
from flowrl.graph.model import Edge, Graph

Groups = Mapping[str, str]  # each node's group, by the name of one of its nodes


def stream_groups(graph: Graph) -> dict[str, str]:
    """Return the group of each node: nodes that streams or links join are in one group."""
    joined = dependency_graph(graph.nodes, [e for e in graph.edges if e.kind != "state"])
    return {
        name: first for group in joined.components() for first in [min(group)] for name in group
    }


def nodes_paced_by(graph: Graph, name: str) -> set[str]:
    """Return the nodes that fire after a node's versions, directly or through other paced nodes."""
    groups = stream_groups(graph)
    found: set[str] = set()
    todo = {name}
    while todo:
        pacing = [e for e in graph.edges if e.every is not None and e.source.node in todo]
        into = {groups[edge.to.node] for edge in pacing}
        todo = {n for n in graph.nodes if groups[n] in into} - found
        found |= todo
    return {n for n in found if graph.nodes[n].fires}


def paced_groups(
    graph: Graph, groups: Groups, incomplete: frozenset[str], problems: list[Problem]
) -> dict[str, Edge]:
    """Return the groups that are paced by a state with `every`, each with the edge of that state.

    An edge of an `incomplete` node may be missing because of a problem that was reported before.
    """
    states = [e for e in graph.edges if e.kind == "state"]
    found: dict[str, Edge] = {}
    for edge in states:
        if edge.every is not None:
            group = groups[edge.to.node]
            clash = list(_clashing_paces(edge, groups, found.get(group)))
            problems.extend(clash)
            if not clash:
                found[group] = edge
        if edge.lag and edge.latest:
            problems.append(_exclusive_options(edge, "lag", "latest"))
    problems.extend(_pace_cycle_problems(groups, found))
    driven = _stream_nodes(graph) | incomplete
    for edge in states:
        fires_in_rounds = edge.every is None and groups[edge.to.node] not in found
        if fires_in_rounds and edge.to.node not in driven:
            problems.append(_missing_pace(edge))
    return found


def _clashing_paces(edge: Edge, groups: Groups, before: Edge | None) -> Iterator[Problem]:
    location, to, source = str(edge.location), edge.to.node, edge.source.node
    if groups[source] == groups[to]:
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


def _pace_cycle_problems(groups: Groups, found: dict[str, Edge]) -> Iterator[Problem]:
    """Yield a problem for each group whose paces do not lead back to a node that fires in rounds.

    These groups are removed from `found`.
    """
    for group in list(found):
        seen, at = {group}, group
        while at in found and (at := groups[found[at].source.node]) not in seen:
            seen.add(at)
        if at in found and at == group:
            edge = found.pop(group)
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
