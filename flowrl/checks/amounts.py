"""Checks amounts: enough rows before the first output is due, and enough memory."""

from __future__ import annotations

from collections.abc import Iterator

from flowrl.checks.descriptions import NodeDescriptions
from flowrl.checks.serial_program import Schedule, SerialProgram
from flowrl.core.batch import row_bytes
from flowrl.core.errors import Problem
from flowrl.core.wording import count_text, size_text
from flowrl.graph.model import Edge, Graph, PortRef
from flowrl.machine.resource_limits import machine_memory_bytes


def row_problems(
    graph: Graph, program: SerialProgram, described: NodeDescriptions
) -> Iterator[Problem]:
    """Yield a problem for each node whose first output is due before enough rows have arrived at an input."""
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
    """Return the rows that have arrived when the node's first output is due; None if it never has an output."""
    rows = 0
    schedules: list[tuple[Schedule, int]] = [(w.schedule, w.rounds) for w in program.warmup]
    for schedule, rounds in [*schedules, (program.round, 1)]:
        if name not in schedule.firings or not rounds or edge not in schedule.edges:
            continue
        if any(source.node not in schedule.firings for source in edge.sources):
            return None  # a fan-in of some of its sources
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


def token_problems(graph: Graph, described: NodeDescriptions) -> Iterator[Problem]:
    """Yield a problem for each stream whose tokens have another number of rows than the node at its end needs."""
    for edge in graph.edges:
        facts = described.facts.get(edge.to.node)
        if facts is None or edge.to.port not in facts.needs_rows_each:
            continue
        rows, (needed, param) = described.rows.get(edge.to), facts.needs_rows_each[edge.to.port]
        if rows is not None and rows != needed:
            what = f"{edge}: each token must have {needed} rows ({param}), and those of {edge.source} have {rows}"
            before = (e.location for e in graph.edges_into(edge.source.node))
            nodes = graph.nodes[edge.to.node].locations()
            where = graph.last_written([edge.location, *nodes, *before])
            yield Problem(str(where), what, _rows_hint(edge, rows, needed))


def _rows_hint(edge: Edge, rows: int, needed: int) -> str:
    if rows < needed:
        return f"let {edge.source.node} emit as many"
    chosen = f"parts: {rows // needed}" if rows % needed == 0 else f"first: …, count: {needed}"
    between = f"{edge.source} -> split -> {edge.to}"
    return f"write '{between}' with the node `split: {{type: rows, {chosen}}}`"


def burst_problems(
    graph: Graph, program: SerialProgram, described: NodeDescriptions
) -> Iterator[Problem]:
    """Yield a problem for each stream of which one firing gives more than the memory of this machine holds."""
    memory_bytes, schedule = machine_memory_bytes(), program.round
    for edge in schedule.edges:
        schema, rows = described.schemas.get(edge.to), described.rows.get(edge.to)
        if edge.kind != "stream" or not schema or rows is None or memory_bytes is None:
            continue
        tokens = max(schedule.rates.get(source, 1) for source in edge.sources)
        total = tokens * rows * row_bytes(schema)
        if total > memory_bytes:
            name = edge.source.node
            given, size = count_text(tokens, "token"), size_text(total)
            what = (
                f"{edge}: a firing of {name} gives {given}, which would take {size}; this machine has "
                f"{size_text(memory_bytes)}"
            )
            where = graph.last_written([*graph.nodes[name].locations()])
            yield Problem(str(where), what, "let it give fewer at a time, or smaller ones")


def memory_problems(graph: Graph, described: NodeDescriptions) -> Iterator[Problem]:
    """Yield a problem if the nodes together would allocate more memory than this machine has."""
    wanted_bytes = {
        name: facts.memory_bytes * graph.nodes[name].replicas
        for name, facts in described.facts.items()
        if facts.memory_bytes
    }
    memory_bytes, total = machine_memory_bytes(), sum(wanted_bytes.values())
    if memory_bytes is None or total <= memory_bytes:
        return
    name = max(wanted_bytes, key=lambda n: wanted_bytes[n])
    spec = graph.nodes[name]
    key = next((k for k in ("size", "capacity") if k in spec.written.fields), "")
    share = f" of {size_text(total)} in all" if len(wanted_bytes) > 1 else ""
    size, memory = size_text(wanted_bytes[name]), size_text(memory_bytes)
    what = f"nodes.{name} would take {size}{share}; this machine has {memory}"
    yield Problem(str(spec.location(key)), what, "make it smaller, or store smaller columns")
