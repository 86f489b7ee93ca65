"""Checks that what a node changes is read: a reward model before an algorithm that reads no rewards has no effect."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.checks.descriptions import NodeDescriptions
from flowrl.core.errors import Problem
from flowrl.graph.model import Graph, PortRef


def unread_column_problems(graph: Graph, described: NodeDescriptions) -> Iterator[Problem]:
    """Yield a problem for each node that changes columns of which nothing behind it reads any."""
    for name, facts in described.facts.items():
        for port, columns in facts.changes.items():
            output = PortRef(name, port)
            is_fed = any(output in edge.sources for edge in graph.edges)
            if is_fed and not any(_may_be_read(graph, described, output, c) for c in columns):
                where = graph.last_written([*graph.nodes[name].locations()])
                changed = ", ".join(f"'{column}'" for column in sorted(columns))
                what = f"nodes.{name} has no effect: it changes {changed}, which no learner behind it reads"
                hint = "leave it out, or take an algorithm that learns from it"
                yield Problem(str(where), what, hint)


def _may_be_read(graph: Graph, described: NodeDescriptions, output: PortRef, column: str) -> bool:
    """Whether a learner reads a column of an output, or another node may.

    A node that only passes on columns does not read them. One that adds others may compute them from any.
    """
    todo, seen = [output], set[PortRef]()
    while todo:
        source = todo.pop()
        if source in seen:
            continue
        seen.add(source)
        for edge in graph.edges:
            if edge.kind != "stream" or source not in edge.sources:
                continue
            facts = described.facts.get(edge.to.node)
            needs = facts.needs.get(edge.to.port, {}) if facts else {}
            if facts is None or column in needs:
                return True
            if graph.nodes[edge.to.node].cls.role == "learner" and needs:
                continue
            given, tables = described.schemas.get(edge.to) or {}, facts.outs
            if not tables or any(t is None or t.keys() - given.keys() for t in tables.values()):
                return True
            todo += [PortRef(edge.to.node, port) for port, table in tables.items() if table]
    return False
