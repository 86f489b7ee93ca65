"""Checks that rows arrive in the order of time, or as whole episodes, where a node needs that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from flowrl.checks.ordering import is_feedback
from flowrl.core.errors import Problem
from flowrl.core.facts import Facts
from flowrl.core.ports import In
from flowrl.graph.model import Edge, Graph, PortRef
from flowrl.graph.yaml_text import SourceLocation


def row_order_problems(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[Problem]:
    """Yield a problem for each input that needs ordered rows and is fed by rows in another order."""
    needs = {name: found.needs_order for name, found in facts.items()}
    for to, culprit, where in _wrong_sources(graph, facts, needs, _is_disordered):
        what = (
            f"{to} needs rows in the order of time, each followed by the next step of its env up to "
            f"`last`, and {culprit} gives single rows in another order"
        )
        hint = facts[to.node].order_hints.get(to.port, "").replace("{source}", culprit.node) or (
            f"feed {to.node} without {culprit.node}, or put in its place what keeps the order, "
            "such as a queue_buffer"
        )
        yield Problem(str(where), what, hint)


def episode_problems(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[Problem]:
    """Yield a problem for each input that needs whole episodes and is fed by tokens that end within episodes."""
    needs = {name: found.needs_episodes for name, found in facts.items()}
    for to, culprit, where in _wrong_sources(graph, facts, needs, _cuts):
        what = f"{to} needs whole episodes, and {culprit} gives tokens that end within them"
        hint = facts[to.node].episode_hints.get(to.port, "").replace("{source}", culprit.node)
        hint = hint or f"put an episode_collector in the place of {culprit.node}"
        yield Problem(str(where), what, hint)


def _wrong_sources(
    graph: Graph,
    facts: Mapping[str, Facts],
    needs: Mapping[str, frozenset[str]],
    is_wrong: Callable[[Facts, str], bool | None],
) -> Iterator[tuple[PortRef, PortRef, SourceLocation]]:
    """Yield each input whose rows come from a wrong output, that output, and the location of the problem.

    `needs` are the inputs to look at, by node.
    """
    into = {edge.to: edge for edge in graph.edges if edge.kind == "stream"}
    for name, ports in needs.items():
        for port in sorted(ports):
            edge = into.get(PortRef(name, port))
            if edge is None:
                continue
            culprit = _first_source(graph, facts, into, edge, is_wrong)
            if culprit is not None:
                ends = (graph.nodes[name], graph.nodes[culprit.node])
                where = [edge.location, *(at for spec in ends for at in spec.locations())]
                yield edge.to, culprit, graph.last_written(where)


def _first_source(
    graph: Graph,
    facts: Mapping[str, Facts],
    into: Mapping[PortRef, Edge],
    edge: Edge,
    is_wrong: Callable[[Facts, str], bool | None],
) -> PortRef | None:
    """Return the output, among those from which a stream's rows come, that is nearest and wrong.

    Where `is_wrong` is None, the output is as what the node gets at its first input.
    """
    todo, seen = list(edge.sources), set[PortRef]()
    while todo:
        output = todo.pop(0)
        if output in seen or output.node not in facts:
            continue
        seen.add(output)
        wrong = is_wrong(facts[output.node], output.port)
        if wrong:
            return output
        if wrong is None:
            todo += sources_of_first_input(graph, into, output.node)
    return None


def _is_disordered(facts: Facts, port: str) -> bool | None:
    ordered = facts.ordered.get(port)
    return None if ordered is None else not ordered


def _cuts(facts: Facts, port: str) -> bool | None:
    return port in facts.cuts_episodes or None


def sources_of_first_input(
    graph: Graph, into: Mapping[PortRef, Edge], name: str
) -> tuple[PortRef, ...]:
    """The outputs that feed the first stream input of a node, whose order its own outputs keep."""
    ports = graph.nodes[name].cls.ports.items()
    edges = (into.get(PortRef(name, port)) for port, kind in ports if isinstance(kind, In))
    edge = next((edge for edge in edges if edge is not None), None)
    return () if edge is None or is_feedback(graph, edge) else edge.sources
