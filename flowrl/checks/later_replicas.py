"""Checks replicas that may come later than the run (`replicas: 2..16`): nothing may wait for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowrl.checks.lossy_edges import may_lack_tokens
from flowrl.checks.site_kinds import inelastic_reason
from flowrl.core.errors import Problem
from flowrl.graph.model import NodeSpec, linked_groups
from flowrl.graph.placement import resolve_placement
from flowrl.graph.site_layout import make_layout

if TYPE_CHECKING:
    from flowrl.checks.check import CheckedGraph

HINT = "write one number, or see docs/snapshots.md on graphs in which nothing waits for a certain replica"


def later_replica_problems(checked: CheckedGraph) -> Iterator[Problem]:
    """Yield a problem for each linked group of which a replica cannot be absent. The graph is sound otherwise."""
    graph = checked.graph
    for group in linked_groups(graph):
        members = [spec for name, spec in graph.nodes.items() if name in group]
        spec = next((spec for spec in members if spec.fires), members[0])
        if spec.least_replicas is not None and (why := _reason(checked, members)):
            what = f"nodes.{spec.name}: replicas is {spec.written_replicas}, and none can be absent"
            yield Problem(str(spec.location()), f"{what}: {why}", HINT)


def _reason(checked: CheckedGraph, members: list[NodeSpec]) -> str:
    """Return why none of the later replicas of a linked group can be absent; empty if they can."""
    for spec in members:
        if spec.is_group:
            return f"the replicas of '{spec.name}' fire together"
        for warm in checked.program.warmup:
            for edge in warm.schedule.edges:
                is_source = spec.name in {source.node for source in edge.sources}
                if is_source and edge.to.node not in may_lack_tokens(warm.schedule):
                    return f"{edge}: '{edge.to.node}' waits for its tokens in the warm-up"
    layout = make_layout(checked.graph, resolve_placement(checked.graph, "processes"))
    last = layout.site_of[members[0].name, members[0].replicas - 1]
    return inelastic_reason(checked, layout, last)
