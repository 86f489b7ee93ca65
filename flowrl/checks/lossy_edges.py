"""Edges that drop: who may find too few tokens because of them, and where the others would pile up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flowrl.checks.serial_program import Schedule, SerialProgram
from flowrl.core.errors import Problem
from flowrl.graph.model import Edge, Graph


def may_lack_tokens(schedule: Schedule) -> set[str]:
    """Nodes that may find too few tokens: a dropping edge, or a node that fires on any input, is upstream or theirs."""
    found = set(schedule.any_input_nodes)
    while True:  # feedback leads against the order
        more = {e.to.node for e in schedule.edges if _lossy(e, schedule, found)} - found
        if not more:
            return found
        found |= more


def fires_without_rate(schedule: Schedule) -> set[str]:
    """Nodes of which no rate says how often they fire in a round: as often as they find tokens."""
    found = set(schedule.any_input_nodes)
    while (
        more := {e.to.node for e in schedule.edges if any(s.node in found for s in e.sources)}
        - found
    ):
        found |= more
    return found


def may_lack_tokens_anywhere(program: SerialProgram) -> set[str]:
    """The nodes that starve anywhere in a program."""
    schedules = [
        program.round,
        *(w.schedule for w in program.warmup),
        *(p.schedule for p in program.paced),
    ]
    return set().union(*map(may_lack_tokens, schedules))


def lossy_edge_problems(graph: Graph, program: SerialProgram) -> Iterator[Problem]:
    """Where tokens that may be missing are joined with others, all of them must be allowed to go."""
    for schedule in (program.round, *(p.schedule for p in program.paced)):
        hungry = may_lack_tokens(schedule)
        for name in sorted(hungry - schedule.any_input_nodes):
            into = [edge for edge in schedule.edges if edge.to.node == name]
            if sum(_lanes(graph, edge) for edge in into) > 1:
                yield from _piling_up(name, into)


def _piling_up(name: str, into: Iterable[Edge]) -> Iterator[Problem]:
    for edge in into:
        if edge.when_full == "wait":
            yield Problem(
                str(edge.location),
                f"{edge}: while {name} waits for tokens that were dropped elsewhere, these pile up",
                "write 'when_full: drop_oldest' here too",
            )


def _lossy(edge: Edge, schedule: Schedule, hungry: set[str]) -> bool:
    drops = edge.when_full == "drop_oldest" or edge.to in schedule.stale_dropping_inputs
    return drops or any(s.node in hungry for s in edge.sources)


def _lanes(graph: Graph, edge: Edge) -> int:
    """How many queues a replica of the consumer joins."""
    if edge.merge == "any":
        return 1
    consumers = graph.nodes[edge.to.node].replicas
    sources = [graph.nodes[source.node].replicas for source in edge.sources]
    return sum(1 if replicas == consumers else replicas for replicas in sources)
