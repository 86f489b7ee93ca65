"""Checks that learners get no data of older weights if they cannot learn from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flowrl.checks.row_order import sources_of_first_input
from flowrl.checks.serial_program import SerialProgram
from flowrl.checks.staleness import states_upstream
from flowrl.core.errors import Problem
from flowrl.core.facts import Facts
from flowrl.graph.model import Edge, Graph, PortRef


def old_data_problems(
    graph: Graph, facts: Mapping[str, Facts], program: SerialProgram
) -> Iterator[Problem]:
    """Yield problems for learners that would learn from data of older weights, and cannot."""
    for name, found in facts.items():
        if found.on_policy or found.needs_newest_weights:
            yield from _replay_problems(graph, facts, name)
        if found.needs_newest_weights:
            yield from _older_weights_problems(graph, name, found.needs_newest_weights, program)


def _replay_problems(graph: Graph, facts: Mapping[str, Facts], name: str) -> Iterator[Problem]:
    """Yield a problem for each input of an on-policy learner whose rows a buffer replays.

    An input that needs the order of time refuses most buffers for that reason.
    """
    for edge in graph.edges_into(name):
        ports = _streams_upstream(graph, edge) if edge.kind == "stream" else []
        for port in (p for p in ports if p.node in facts and p.port in facts[p.node].replays):
            disordered = edge.to.port in facts[name].needs_order
            if disordered and facts[port.node].ordered.get(port.port) is False:
                continue
            what = f"{name} learns on-policy, and {port} repeats rows that older weights made"
            hint = f"feed {name} without {port.node}, or take an algorithm that learns from replay"
            yield Problem(str(edge.location), what, hint)


def _older_weights_problems(
    graph: Graph, name: str, why: str, program: SerialProgram
) -> Iterator[Problem]:
    """Yield problems for states that lag, and for several train iterations in each round."""
    hint = "give the policy `advantages: learner`"
    for edge in (edge for edge in graph.edges_into(name) if edge.kind == "stream"):
        for state in states_upstream(graph, edge):
            if state.source.node == name and (state.lag or state.latest):
                how = "latest" if state.latest else f"lag {state.lag}"
                what = (
                    f"{name} needs data of its newest weights, and {state} is stale ({how}): {why}"
                )
                yield Problem(str(state.location), what, f"leave that out, or {hint}")
    firings = program.round.firings.get(name, 1)
    if firings > 1:
        spec = graph.nodes[name]
        what = f"{name} fires {firings} times in each round, after the first time on data of older weights: {why}"
        yield Problem(str(spec.location()), what, f"give it one batch in each round, or {hint}")


def _streams_upstream(graph: Graph, edge: Edge) -> list[PortRef]:
    """Return the outputs from which the rows of a stream come, through the first input of each node."""
    into = {e.to: e for e in graph.edges if e.kind == "stream"}
    todo, found = list(edge.sources), dict[PortRef, None]()
    while todo:
        port = todo.pop()
        if port not in found:
            found[port] = None
            todo += sources_of_first_input(graph, into, port.node)
    return list(found)
