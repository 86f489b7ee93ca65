"""Checks amounts: enough rows before the first output is due, and enough memory."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.checks.descriptions import NodeDescriptions
from flowrl.checks.serial_program import Schedule, SerialProgram
from flowrl.core.errors import Problem
from flowrl.core.wording import size_text
from flowrl.graph.model import Edge, Graph, PortRef
from flowrl.machine.resource_limits import machine_memory_bytes


def row_problems(
    graph: Graph, program: SerialProgram, described: NodeDescriptions
) -> Iterator[Problem]:
    """Nodes whose first output is due before enough rows have arrived at an input."""
    into = {edge.to: edge for edge in graph.edges}
    for name, facts in described.facts.items():
        for port, (needed, param) in facts.needs_rows.items():
            edge = into.get(PortRef(name, port))
            if edge is None or edge.to not in described.rows or name not in program.round.firings:
                continue
            rows = _rows_before_first_output(program, name, edge, described.rows[edge.to])
            if rows is not None and rows < needed:
                yield _too_few_rows(graph, program, edge, rows, needed, param)


def _rows_before_first_output(
    program: SerialProgram, name: str, edge: Edge, per_token: int
) -> int | None:
    """The rows that have arrived when the node's first output is due; None if none ever is."""
    rows = 0
    schedules: list[tuple[Schedule, int]] = [(w.schedule, w.rounds) for w in program.warmup]
    for schedule, rounds in [*schedules, (program.round, 1)]:
        if name not in schedule.firings or not rounds:
            continue
        in_one_firing = schedule.rates.get(edge.to, 0) * per_token
        if schedule.active_outputs(name):
            return rows + in_one_firing
        rows += rounds * schedule.firings[name] * in_one_firing
    return None


def _too_few_rows(
    graph: Graph, program: SerialProgram, edge: Edge, rows: int, needed: int, param: str
) -> Problem:
    name, source = edge.to.node, edge.source.node
    phases = [w.phase for w in program.warmup if name in w.schedule.firings]
    location = phases[0].location if phases else graph.nodes[name].location(param)
    what = f"nodes.{name}: the first batch needs {needed} rows ({param}), and {rows} will have arrived by then"
    longer = f"'warmup: [{{edges: [{source} -> {name}], steps: {needed}}}]'"
    return Problem(str(location), what, f"warm up longer: {longer}, or lower {param}")


def memory_problems(graph: Graph, described: NodeDescriptions) -> Iterator[Problem]:
    """The problem that all nodes together would allocate more than this machine has."""
    wants = {
        name: facts.memory_bytes * graph.nodes[name].replicas
        for name, facts in described.facts.items()
        if facts.memory_bytes
    }
    have, total = machine_memory_bytes(), sum(wants.values())
    if have is None or total <= have:
        return
    name = max(wants, key=lambda n: wants[n])
    spec = graph.nodes[name]
    key = next((k for k in ("size", "capacity") if k in spec.written.fields), "")
    others = f" of {size_text(total)} in all" if len(wants) > 1 else ""
    what = f"nodes.{name} would take {size_text(wants[name])}{others}; this machine has {size_text(have)}"
    yield Problem(str(spec.location(key)), what, "make it smaller, or store smaller columns")
