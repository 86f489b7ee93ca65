"""Sites on which nothing fires but what a learner's versions pace: they may be some versions behind the others.

So evaluations do not hold up what they evaluate. They cut where the version is that they see: for them, no state has to
be kept of any other.
"""

from __future__ import annotations

from flowrl.checks.check import CheckedGraph
from flowrl.graph.site_layout import SiteLayout

QUEUE = 2  # versions that may wait beside the one that is evaluated


def paced_sites(checked: CheckedGraph, layout: SiteLayout) -> frozenset[str]:
    """The sites that nothing but paced nodes fire on."""
    rounds = set(checked.program.round.order)
    where = [(n, s) for (n, _), s in layout.site_of.items() if checked.graph.nodes[n].fires]
    busy = {site for node, site in where if node in rounds}
    return frozenset({site for _, site in where} - busy) if busy else frozenset()


def rounds_behind(checked: CheckedGraph) -> int:
    """How many rounds such sites may be behind."""
    if not paced_by_one(checked):
        return 0
    program, firings = checked.program, checked.program.round.firings
    behind = [
        QUEUE * p.every // firings[p.source.node] for p in program.paced if p.source.node in firings
    ]
    return max(behind, default=0)


def paced_by_one(checked: CheckedGraph) -> bool:
    """Whether all versions that pace in the end are those of the only learner, and all collectors fire in rounds."""
    graph, program = checked.graph, checked.program
    learners = graph.nodes_of_role("learner")
    paced = {node for p in program.paced for node in p.schedule.firings}
    return (
        len(learners) == 1
        and graph.nodes[learners[0]].replicas == 1
        and paced.isdisjoint([*learners, *graph.nodes_of_role("collector")])
        and all(p.source.node in paced | set(learners) for p in program.paced)
    )
