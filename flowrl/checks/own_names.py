"""Checks for whom nodes act to which a state carries the weights of several learners, such as the matches of a league.

A node acts with weights of its own for one of the names that the state carries. The node that sends the state must have
the same weights under that name, and take the results of that node as those of the name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.core.errors import Problem
from flowrl.core.facts import Facts, OwnName
from flowrl.graph.model import Edge, Graph, PortRef


def own_name_problems(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[Problem]:
    """Yield a problem for each node that acts for nobody in particular, or for somebody else than its weights say."""
    into = {edge.to: edge for edge in graph.edges}
    wrong = set()
    for node, found in facts.items():
        for port, own in found.own_names.items():
            edge = into.get(PortRef(node, port))
            carried = {} if edge is None else _carried_by(edge, facts)
            if edge is None or not carried:
                continue
            if own.name is not None and own.name not in carried:
                wrong.add(node)  # `checks/state_settings` says that there is no such name
                continue
            problem: Problem | None
            if own.name is None and len(carried) > 1:
                problem = _without_name(graph, node, own, carried)
            else:
                problem = _with_other_weights(graph, node, own, edge.source.node, carried, into)
            if problem is not None:
                wrong.add(node)
                yield problem
    for node, found in facts.items():
        for port, name in found.results_of.items():
            edge = into.get(PortRef(node, port))
            if edge is not None:
                yield from _results_of_others(graph, edge, name, facts, wrong)


def _carried_by(edge: Edge, facts: Mapping[str, Facts]) -> Mapping[str, str]:
    source = facts.get(edge.source.node)
    return {} if source is None else source.carries.get(edge.source.port, {})


def _without_name(graph: Graph, node: str, own: OwnName, carried: Mapping[str, str]) -> Problem:
    names = [*carried]
    what = f"nodes.{node} acts for one of {', '.join(names)}, and does not say for which"
    hint = f"give it `{own.key}: {names[0]}`"
    return Problem(str(graph.nodes[node].location(own.key)), what, hint)


def _with_other_weights(
    graph: Graph,
    node: str,
    own: OwnName,
    carrier: str,
    carried: Mapping[str, str],
    into: Mapping[PortRef, Edge],
) -> Problem | None:
    """The problem of a node that acts for a name with weights that are not those of the name."""
    sources = {
        name: edge.source
        for name, port in carried.items()
        if (edge := into.get(PortRef(carrier, port))) is not None
    }
    name = next(iter(carried)) if own.name is None else own.name
    acts = into.get(PortRef(node, own.weights))
    if acts is None or name not in sources or sources[name] == acts.source:
        return None
    what = (
        f"nodes.{node} acts for {name} with the weights of {acts.source.node}, and {carrier} has those of "
        f"{sources[name].node} for {name}"
    )
    hint = f"write `{sources[name]} -> {PortRef(node, own.weights)}`"
    for other, source in sources.items():
        if source == acts.source:
            hint = f"give it `{own.key}: {other}`"
    return Problem(str(graph.nodes[node].location(own.key)), what, hint)


def _results_of_others(
    graph: Graph, edge: Edge, name: str, facts: Mapping[str, Facts], wrong: set[str]
) -> Iterator[Problem]:
    """Yield a problem for each source of results that acts for another name."""
    for source in edge.sources:
        known = facts.get(source.node)
        for own in known.own_names.values() if known is not None else ():
            if own.name not in (None, name) and source.node not in wrong:
                what = f"{edge}: these are the results of {own.name}, and the input is for those of {name}"
                hint = f"connect what acts for {name}, or give {source.node} `{own.key}: {name}`"
                yield Problem(str(edge.location), what, hint)
