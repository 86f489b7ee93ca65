"""Lossy edges: which nodes may lack tokens because of them, and where the tokens of other edges would pile up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flowrl.checks.serial_program import Schedule, SerialProgram
from flowrl.core.errors import Problem
from flowrl.graph.model import Edge, Graph


def may_lack_tokens(schedule: Schedule) -> set[str]:
    """Nodes that may find too few tokens, because a lossy edge or a node that fires on any input is upstream."""
    found = set(schedule.any_input_nodes)
    while True:  # several passes, because feedback runs against the order
        more = {e.to.node for e in schedule.edges if _is_lossy(e, schedule, found)} - found
        if not more:
            return found
        found |= more


def fires_without_rate(schedule: Schedule) -> set[str]:
    """Nodes that no rate binds: they fire as often in a round as they find tokens."""
    found = set(schedule.any_input_nodes)
    while (
        more := {e.to.node for e in schedule.edges if any(s.node in found for s in e.sources)}
        - found
    ):
        found |= more
    return found


def may_lack_tokens_anywhere(program: SerialProgram) -> set[str]:
    """The nodes that may lack tokens in any schedule of a program."""
    schedules = [
        program.round,
        *(w.schedule for w in program.warmup),
        *(p.schedule for p in program.paced),
    ]
    return set().union(*map(may_lack_tokens, schedules))


def lossy_edge_problems(graph: Graph, program: SerialProgram) -> Iterator[Problem]:
    """Edges joined with a lossy edge that are not lossy themselves."""
    for schedule in (program.round, *(p.schedule for p in program.paced)):
        may_lack = may_lack_tokens(schedule)
        for name in sorted(may_lack - schedule.any_input_nodes):
            joined = [edge for edge in schedule.edges if edge.to.node == name]
            if sum(_queue_count(graph, edge) for edge in joined) > 1:
                yield from _lossless_edge_problems(name, joined)


def _lossless_edge_problems(name: str, joined: Iterable[Edge]) -> Iterator[Problem]:
    for edge in joined:
        if edge.when_full == "wait":
            yield Problem(
                str(edge.location),
                f"{edge}: {name} joins its tokens with those of a lossy edge, so that they would pile up",
                "write 'when_full: drop_oldest' at this edge, too",
            )


def _is_lossy(edge: Edge, schedule: Schedule, may_lack: set[str]) -> bool:
    drops = edge.when_full == "drop_oldest" or edge.to in schedule.stale_dropping_inputs
    return drops or any(s.node in may_lack for s in edge.sources)


def _queue_count(graph: Graph, edge: Edge) -> int:
    """The number of queues that a replica of the consumer joins."""
    if edge.merge == "any":
        return 1
    consumers = graph.nodes[edge.to.node].replicas
    sources = [graph.nodes[source.node].replicas for source in edge.sources]
    return sum(1 if replicas == consumers else replicas for replicas in sources)
