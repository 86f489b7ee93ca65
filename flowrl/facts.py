"""What every node says of itself before it is made: `describe`, asked in the order that data flows."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path

from flowrl.batch import Schema
from flowrl.config import Config
from flowrl.errors import Problem
from flowrl.graph import Edge, Graph, NodeSpec, PortRef
from flowrl.node import Facts, Known, Unsound
from flowrl.ports import In
from flowrl.program import Program, is_feedback

Schemas = dict[PortRef, Schema | None]


def describe_all(
    graph: Graph,
    program: Program,
    problems: list[Problem],
    configs: Mapping[str, Config] | None = None,
    only: str | None = None,
    known: Mapping[str, Facts] | None = None,
) -> tuple[dict[str, Facts], Schemas]:
    """The facts of all nodes (or of one, its neighbours' facts being known), and the columns at each stream input."""
    facts: dict[str, Facts] = dict(known or {})
    schemas: Schemas = {}
    into: dict[str, list[Edge]] = {}
    taken: set[PortRef] = set()
    for edge in graph.edges:
        into.setdefault(edge.to.node, []).append(edge)
        taken.update(edge.sources)
    for name in [only] if only else _order(graph, program):
        spec = graph.nodes[name]
        inputs = _inputs(graph, spec, into.get(name, []), facts, schemas, problems)
        links = _links(into.get(name, []), facts)
        if inputs is None or links is None:
            continue  # a neighbour's problem was told already
        wanted = frozenset(p for p in spec.cls.ports if PortRef(name, p) in taken)
        config = (configs or {}).get(name, spec.config)
        found = _describe(spec, config, Known(inputs, links, wanted), problems)
        if found is not None:
            facts[name] = found
    return facts, schemas


def _order(graph: Graph, program: Program) -> list[str]:
    """Services before their clients, and then as data flows."""
    flow = [*program.round.order, *(n for p in program.paced for n in p.part.order)]
    services = [n for n in graph.nodes if n not in set(flow)]
    calls: dict[str, list[str]] = {}
    for edge in graph.edges:
        if edge.kind == "link":
            calls.setdefault(edge.to.node, []).append(edge.source.node)
    order: dict[str, None] = {}

    def visit(name: str, above: frozenset[str]) -> None:
        if name not in above:  # a circle of links is told elsewhere
            for service in calls.get(name, ()):
                visit(service, above | {name})
            order.setdefault(name)

    for name in [*services, *flow]:
        visit(name, frozenset())
    return list(order)


def _inputs(
    graph: Graph,
    spec: NodeSpec,
    edges: list[Edge],
    facts: Mapping[str, Facts],
    schemas: Schemas,
    problems: list[Problem],
) -> dict[str, Schema | None] | None:
    found: dict[str, Schema | None] = {}
    for port, kind in spec.cls.ports.items():
        edge = next((e for e in edges if e.to.port == port and e.kind == "stream"), None)
        if not isinstance(kind, In) or edge is None:
            continue
        if is_feedback(graph, edge):
            found[port] = None
            continue
        if any(s.node not in facts for s in edge.sources):
            return None
        given = [facts[s.node].outs.get(s.port) for s in edge.sources]
        found[port] = schemas[edge.to] = given[0]
        for source, other in zip(edge.sources[1:], given[1:], strict=True):
            if other != given[0]:
                problems.append(_differ(edge, source, given[0], other))
    return found


def _differ(edge: Edge, source: PortRef, first: Schema | None, other: Schema | None) -> Problem:
    a = ", ".join(f"{n} {c}" for n, c in (first or {}).items()) or "no table"
    b = ", ".join(f"{n} {c}" for n, c in (other or {}).items()) or "no table"
    return Problem(
        str(edge.mark),
        f"{edge}: its sources give different columns: {edge.source} gives {a}; {source} gives {b}",
        "put a node in between that makes them alike",
    )


def _links(edges: list[Edge], facts: Mapping[str, Facts]) -> dict[str, object] | None:
    found = {}
    for edge in edges:
        if edge.kind == "link":
            if edge.source.node not in facts:
                return None
            found[edge.to.port] = facts[edge.source.node].service
    return found


def _describe(
    spec: NodeSpec, config: Config, known: Known, problems: list[Problem]
) -> Facts | None:
    missing = [
        p
        for p, k in spec.cls.ports.items()
        if not k.optional and isinstance(k, In) and p not in known.inputs
    ]
    missing += [
        p
        for p, k in spec.cls.ports.items()
        if not k.optional and type(k).__name__ == "Link" and p not in known.links
    ]
    if missing:
        return None  # not connected: told elsewhere
    try:
        return spec.cls.describe(config, known)
    except Unsound as error:
        problems.append(
            Problem(str(spec.mark(error.key)), f"nodes.{spec.name}: {error.what}", error.hint)
        )
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        what = f"nodes.{spec.name}: describe raised {type(error).__name__}: {error} ({place})"
        problems.append(Problem(str(spec.mark()), what, f"mend the node type '{spec.type}'"))
    return None
