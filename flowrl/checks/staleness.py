"""Checks the staleness of data: the age of the weights with which it was made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from flowrl.core.errors import Problem
from flowrl.core.facts import Facts
from flowrl.graph.model import Edge, Graph


def staleness_problems(graph: Graph, round_nodes: Collection[str]) -> Iterator[Problem]:
    """Yield problems for edges whose data is staler than their `max_staleness` allows.

    The lags of states of `round_nodes` are rounds; those behind paced nodes are not.
    """
    for edge in graph.edges:
        if edge.max_staleness is None:
            continue
        states = [edge] if edge.kind == "state" else states_upstream(graph, edge)
        yield from _unknown_ages(graph, edge, [e for e in states if e.latest])
        fixed = [e for e in states if not e.latest and e.source.node in round_nodes]
        worst = max(fixed, key=lambda e: e.lag, default=None)
        if worst is not None and worst.lag > edge.max_staleness:
            what = f"{edge}: max_staleness is {edge.max_staleness} rounds, and {worst} has lag {worst.lag}"
            hint = f"lower the lag to {edge.max_staleness}, or allow {worst.lag}"
            yield Problem(str(edge.location), what, hint)


def drops_stale_tokens(graph: Graph, edge: Edge) -> bool:
    """Return whether a stream drops tokens that are too old: it has a bound, and no fixed lag says their age."""
    limited = edge.kind == "stream" and edge.max_staleness is not None
    return limited and any(state.latest for state in states_upstream(graph, edge))


def _unknown_ages(graph: Graph, edge: Edge, latest: Iterable[Edge]) -> Iterator[Problem]:
    """Yield problems for bounds that cannot be enforced.

    Only the learner with whose versions a token was made knows the token's age.
    """
    to = graph.nodes[edge.to.node]
    for state in latest:
        if edge.kind == "state":
            what = f"{edge}: nothing bounds how stale the latest version is"
            hint = "write 'max_staleness' at the stream into the learner: what is too old is dropped there"
            yield Problem(str(edge.location), what, hint)
        elif state.source.node != to.name or to.cls.role != "learner":
            what = (
                f"{edge}: {to.name} does not know how old its tokens are, which depend on {state}"
            )
            hint = f"write 'max_staleness' at a stream into {state.source.node}, if it is a learner"
            yield Problem(str(edge.location), what, hint)


def stale_learners(graph: Graph, facts: Mapping[str, Facts]) -> Iterator[Problem]:
    """Yield warnings for on-policy learners that would learn from data of older weights."""
    for name in (n for n, f in facts.items() if f.on_policy):
        for edge in graph.edges_into(name):
            for state in states_upstream(graph, edge) if edge.kind == "stream" else ():
                if state.source.node == name and (state.lag or state.latest):
                    how = "latest" if state.latest else f"lag {state.lag}"
                    what = f"{name} learns on-policy, and {state} is stale ({how})"
                    hint = "leave the lag out, or use an algorithm that corrects for it"
                    if state.latest:
                        hint = "leave 'latest' out, or use an algorithm that corrects for it"
                    yield Problem(str(state.location), what, hint, warning=True)


def states_upstream(graph: Graph, edge: Edge) -> list[Edge]:
    """Return the state edges on which the tokens of a stream depend."""
    into: dict[str, list[Edge]] = {}
    for e in graph.edges:
        into.setdefault(e.to.node, []).append(e)
    seen: set[str] = set()
    todo = [s.node for s in edge.sources]
    found = []
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        for e in into.get(name, ()):
            if e.kind == "state" and e.every is None:
                found.append(e)
            elif e.kind == "stream":
                todo += [s.node for s in e.sources]
    return found
