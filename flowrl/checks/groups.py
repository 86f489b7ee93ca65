"""Checks that each replica of a group gets its part of every token, and the same settings as the others."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.checks.descriptions import NodeDescriptions
from flowrl.checks.lossy_edges import may_lack_tokens_anywhere
from flowrl.checks.serial_program import SerialProgram
from flowrl.core.errors import Problem
from flowrl.graph.model import Edge, Graph, NodeSpec


def group_problems(
    graph: Graph, program: SerialProgram, described: NodeDescriptions
) -> Iterator[Problem]:
    """Yield the problems of groups: tokens that cannot be split, and replicas that would fire differently."""
    may_lack = may_lack_tokens_anywhere(program)
    for name, spec in graph.nodes.items():
        if not spec.is_group:
            continue
        edges = graph.edges_into(name)
        if name in may_lack:
            edge = next((e for e in edges if e.kind == "stream"), edges[0])
            what = f"{edge}: tokens may be dropped on the way to {name}, whose replicas must all get their parts"
            hint = "let no edge before it drop tokens or merge them as they come, or give it one replica"
            yield Problem(str(edge.location), what, hint)
        for edge in edges:
            yield from _edge_problems(graph, described, spec, edge)


def _edge_problems(
    graph: Graph, described: NodeDescriptions, spec: NodeSpec, edge: Edge
) -> Iterator[Problem]:
    where, size = str(edge.location), spec.replicas
    if edge.latest:
        what = f"{edge}: the replicas of {spec.name} would see different versions, and must all see the same"
        yield Problem(where, what, "leave out `latest`")
    if edge.merge == "any":
        what = f"{edge}: the replicas of {spec.name} would get parts of different tokens"
        yield Problem(where, what, "leave out `merge: any`")
    if edge.kind != "stream":
        return
    for source in edge.sources:
        if graph.nodes[source.node].replicas == size or source.node not in described.facts:
            continue
        facts = described.facts[source.node]
        rows = facts.rows.get(source.port)
        if facts.outs.get(source.port) is None:
            what = f"{edge}: only tables are split among the {size} replicas of {spec.name}, and this is no table"
            yield Problem(
                where, what, f"give {source.node} {size} replicas, too, or {spec.name} one"
            )
        elif rows is not None and rows < size:
            what = f"{edge}: a token of {_rows_text(rows)} cannot be split among the {size} replicas of {spec.name}"
            yield Problem(where, what, "give batches of more rows, or fewer replicas")


def _rows_text(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows} rows"
