"""Finds the nodes that may lack tokens because of lossy edges, and edges on which tokens would pile up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flowrl.checks.serial_program import Schedule, SerialProgram
from flowrl.core.errors import Problem
from flowrl.graph.model import Edge, Graph


def may_lack_tokens(schedule: Schedule) -> set[str]:
    """Return the nodes that may find too few tokens.

    A lossy edge, or a node that fires on any input, is upstream of them, perhaps through a feedback edge.
    """
    found = set(schedule.any_input_nodes)
    while more := {e.to.node for e in schedule.edges if _is_lossy(e, schedule, found)} - found:
        found |= more
    return found


def fires_without_rate(schedule: Schedule) -> set[str]:
    """Return the nodes without a fixed rate, which fire in a round as often as they find tokens."""
    found = set(schedule.any_input_nodes)
    while more := {e.to.node for e in schedule.edges if _has_source_in(found, e)} - found:
        found |= more
    return found


def may_lack_tokens_anywhere(program: SerialProgram) -> set[str]:
    """Return the nodes that may lack tokens in any schedule of a program."""
    schedules = [*program.round_schedules, *program.schedules]
    return set().union(*map(may_lack_tokens, schedules))


def nodes_that_may_skip_firings(program: SerialProgram) -> set[str]:
    """Return the nodes that may fire less often in a round than planned: they, or their pacers, may lack tokens."""
    return with_paced_nodes(program, may_lack_tokens_anywhere(program))


def with_paced_nodes(program: SerialProgram, nodes: set[str]) -> set[str]:
    """Return these nodes, and all that they pace, directly or through others."""
    found = set(nodes)
    pacers = {name: paced.source.node for paced in program.paced for name in paced.schedule.firings}
    while more := {name for name, pacer in pacers.items() if pacer in found} - found:
        found |= more
    return found


def lossy_edge_problems(graph: Graph, program: SerialProgram) -> Iterator[Problem]:
    """Yield a problem for each lossless edge that is joined with a lossy one."""
    for schedule in program.schedules:
        may_lack = may_lack_tokens(schedule)
        for name in sorted(may_lack - schedule.any_input_nodes):
            joined = [edge for edge in schedule.edges if edge.to.node == name]
            if sum(queue_count(graph, edge) for edge in joined) > 1:
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
    return drops or _has_source_in(may_lack, edge)


def _has_source_in(nodes: set[str], edge: Edge) -> bool:
    return any(source.node in nodes for source in edge.sources)


def queue_count(graph: Graph, edge: Edge) -> int:
    """Return the number of queues that a replica of the consumer joins."""
    if edge.merge == "any":
        return 1
    consumers = graph.nodes[edge.to.node].replicas
    sources = [graph.nodes[source.node].replicas for source in edge.sources]
    return sum(1 if replicas == consumers else replicas for replicas in sources)
