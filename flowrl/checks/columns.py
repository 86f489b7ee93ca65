"""Checks that producers give the columns that their consumers need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from flowrl.checks.descriptions import NodeDescriber, NodeDescriptions, columns_text
from flowrl.checks.serial_program import SerialProgram, WarmUpSchedule
from flowrl.core.batch import Column, Schema
from flowrl.core.errors import Problem, spelling_hint
from flowrl.core.facts import Facts
from flowrl.graph.model import Edge, Graph, PortRef
from flowrl.graph.yaml_writer import flow_text


def column_problems(graph: Graph, described: NodeDescriptions) -> Iterator[Problem]:
    """Yield problems for columns that are missing, or whose type or shape is not the needed one.

    Of an edge with sequences, the settings of these are one problem, which is the cause of wrong columns.
    """
    for edge in graph.edges:
        facts = described.facts.get(edge.to.node)
        needs = facts.needs.get(edge.to.port) if facts else None
        if not needs or edge.to not in described.schemas:
            continue
        given = described.schemas[edge.to]
        if given is None:
            what = f"{edge.to} needs columns ({columns_text(needs)}), and {_sources(edge)} gives no table"
            yield Problem(str(edge.location), what, "connect what gives a Batch")
            continue
        wrong = [name for name, column in needs.items() if given.get(name) != column]
        if (problem := _sequence_problem(graph, edge, described, bool(wrong))) is not None:
            yield problem
        else:
            for name in wrong:
                hint = facts.column_hints.get(name, "") if facts else ""
                yield _wrong_column(graph, edge, name, needs[name], given, hint)


def _sequence_problem(
    graph: Graph, edge: Edge, described: NodeDescriptions, differs: bool
) -> Problem | None:
    """Return the problem if the ends of an edge do not mean the same sequences. `differs`: their columns do, too."""
    given = _sequences(described, edge.source)
    needed = _sequences(described, edge.to)
    if given and needed:
        wrong = [name for name, value in needed.items() if not _suits(given.get(name), value)]
        if not wrong:
            return None
        pairs = ", ".join(
            f"{name} is {flow_text(given.get(name))} of {edge.source} and {flow_text(needed[name])} of {edge.to}"
            for name in wrong
        )
        what = f"{edge.source} gives other sequences than {edge.to} needs: {pairs}"
        fixed = {name: needed[name] for name in wrong}
        hint = f"write `{edge.source.node}: {flow_text(fixed)}`, or change the policy"
    elif needed and differs:
        what = f"{edge.to} needs sequences of steps, and {_sources(edge)} gives none"
        hint = f"feed it from `{flow_text({'type': 'sequence_buffer', **needed})}`"
    elif given and differs:
        what = f"{edge.source} gives sequences of steps, and {edge.to} needs rows of another kind"
        hint = "put a buffer of single steps in its place, or take a policy that learns from sequences, such as r2d2"
    else:
        return None
    ends = [graph.nodes[edge.source.node], graph.nodes[edge.to.node]]
    where = graph.last_written([at for spec in ends for at in spec.locations()])
    return Problem(str(where), what, hint)


def _sequences(described: NodeDescriptions, port: PortRef) -> Mapping[str, Any]:
    facts = described.facts.get(port.node)
    return facts.sequences.get(port.port, {}) if facts else {}


def _suits(given: Any, needed: Any) -> bool:
    if isinstance(given, list) and isinstance(needed, list):
        return set(needed) <= set(given)
    return bool(given == needed)


def _wrong_column(
    graph: Graph, edge: Edge, name: str, column: Column, given: Schema, if_missing: str
) -> Problem:
    ends = [graph.nodes[port.node] for port in (*edge.sources, edge.to)]
    where = graph.last_written([edge.location, *(at for spec in ends for at in spec.locations())])
    if name in given:
        what = f"{edge.to} needs the column '{name}' as {column}, and {_sources(edge)} gives it as {given[name]}"
        hint = "convert it in between, or change the node that makes it"
    else:
        what = (
            f"{edge.to} needs the column '{name}' ({column}), and {_sources(edge)} does not give it"
        )
        hint = if_missing.replace("{source}", edge.source.node)
        hint = hint or f"it gives {columns_text(given)}"
        near = spelling_hint(name, given)
        hint = f"{hint}; {near}" if near.startswith("did you mean") else hint
    return Problem(str(where), what, hint)


def _sources(edge: Edge) -> str:
    return ", ".join(map(str, edge.sources))


def warmup_column_problems(
    graph: Graph, program: SerialProgram, describer: NodeDescriber
) -> Iterator[Problem]:
    """Yield problems for settings of a phase that change the columns of an edge."""
    for warm in program.warmup:
        for node, settings in warm.phase.settings.items():
            config = graph.nodes[node].config.model_copy(update=dict(settings))
            before = len(describer.problems)
            usual = describer.descriptions.facts.get(node)
            facts = describer.describe_node(node, config)
            # The phase is wrong, and not the node's own parameters.
            describer.problems[before:] = [
                replace(problem, where=str(warm.phase.location), what=f"warmup: {problem.what}")
                for problem in describer.problems[before:]
            ]
            if usual is not None and facts is not None:
                yield from _lost_columns(graph, warm, node, usual, facts)


def _lost_columns(
    graph: Graph, warm: WarmUpSchedule, node: str, usual: Facts, facts: Facts
) -> Iterator[Problem]:
    phase, spec = warm.phase, graph.nodes[node]
    settings = ", ".join(phase.settings[node])
    where = graph.last_written([phase.location, *map(spec.location, phase.settings[node])])
    warmup = "warmup" if where == phase.location else f"warm-up at {phase.location}"
    for port in sorted(warm.schedule.active_outputs(node)):
        before, now = usual.outs.get(port) or {}, facts.outs.get(port) or {}
        lost = [f"{name} ({column})" for name, column in before.items() if now.get(name) != column]
        if lost:
            what = (
                f"{warmup}: with {settings} set, {node}.{port} does not give the column {lost[0]}"
            )
            hint = (
                "use a setting that gives the same columns, or remove the warm-up: `warmup: null`"
            )
            yield Problem(str(where), what, hint)
