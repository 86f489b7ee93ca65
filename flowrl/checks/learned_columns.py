"""Finds the columns from which learners learn, in every stream that leads to one. Their numbers must be finite."""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.core.batch import Schema
from flowrl.core.facts import Facts
from flowrl.graph.model import Edge, Graph, PortRef

LearnedColumns = dict[PortRef, frozenset[str]]  # of stream outputs


def learned_columns(graph: Graph, facts: Mapping[str, Facts]) -> LearnedColumns:
    """Return the columns of floats from which a learner learns, by stream output.

    A column keeps its name on its way: from the needs of a learner it is followed upstream through every node whose
    input has a column of this name.
    """
    found: LearnedColumns = {}
    streams = [edge for edge in graph.edges if edge.kind == "stream"]
    learners = graph.nodes_of_role("learner")
    pending = [
        (edge, _floats(facts[edge.to.node].needs.get(edge.to.port) or {}))
        for edge in streams
        if edge.to.node in learners and edge.to.node in facts
    ]
    while pending:
        edge, names = pending.pop()
        for source in edge.sources:
            new = names - found.get(source, frozenset())
            if new:
                found[source] = found.get(source, frozenset()) | new
                upstream = [e for e in streams if e.to.node == source.node]
                pending += [(e, new & _columns_of(e, facts)) for e in upstream]
    return found


def _floats(schema: Schema) -> frozenset[str]:
    return frozenset(name for name, column in schema.items() if column.dtype.startswith("float"))


def _columns_of(edge: Edge, facts: Mapping[str, Facts]) -> frozenset[str]:
    """Return the columns of floats that all producers of an edge give."""
    given = [facts[s.node].outs.get(s.port) or {} if s.node in facts else {} for s in edge.sources]
    return frozenset.intersection(*map(_floats, given))
