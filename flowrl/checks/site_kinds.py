"""Finds the sites whose rounds are not synchronised with those of the others: free sites and paced sites.

On a *free* site, all nodes that fire may lack tokens. No site waits for its rounds, and all its firings count, wherever
the run is cut. On a *paced* site, all nodes that fire are paced, such as evaluators. It may be some versions behind, so
that an evaluation does not block the learner that it evaluates. A verdict cuts at the version that was evaluated, so
other learners' states need not be kept.
"""

from __future__ import annotations

from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens
from flowrl.checks.serial_program import SerialProgram
from flowrl.graph.site_layout import SiteLayout

QUEUED_VERSIONS = 2  # versions that may wait while another one is evaluated


def free_sites(checked: CheckedGraph, layout: SiteLayout) -> frozenset[str]:
    """Return the sites on which only free nodes fire. Without any other site there is none: rounds synchronise them."""
    free_nodes = _free_nodes(checked.program)
    bound: set[str] = set()
    free: set[str] = set()
    for (node, _), site in layout.site_of.items():
        if checked.graph.nodes[node].fires:
            (free if node in free_nodes else bound).add(site)
    return frozenset(free - bound) if bound else frozenset()


def _free_nodes(program: SerialProgram) -> set[str]:
    """Return the nodes that may lack tokens, and the nodes that they pace."""
    pacers = {name: paced.source.node for paced in program.paced for name in paced.schedule.firings}
    free = may_lack_tokens(program.round)
    while more := {name for name, pacer in pacers.items() if pacer in free} - free:
        free |= more
    return free


def paced_sites(checked: CheckedGraph, layout: SiteLayout) -> frozenset[str]:
    """Return the sites on which only paced nodes fire; none if there is no other site."""
    rounds = set(checked.program.round.order)
    fires = [(n, s) for (n, _), s in layout.site_of.items() if checked.graph.nodes[n].fires]
    busy = {site for node, site in fires if node in rounds}
    return frozenset({site for _, site in fires} - busy) if busy else frozenset()


def rounds_behind(checked: CheckedGraph) -> int:
    """Return how many rounds paced sites may be behind the others."""
    if not is_paced_by_one_learner(checked):
        return 0
    program, firings = checked.program, checked.program.round.firings
    behind = [
        QUEUED_VERSIONS * p.every // firings[p.source.node]
        for p in program.paced
        if p.source.node in firings
    ]
    return max(behind, default=0)


def is_paced_by_one_learner(checked: CheckedGraph) -> bool:
    """Return whether the only learner paces all paced nodes, and all collectors fire in rounds."""
    graph, program = checked.graph, checked.program
    learners = graph.nodes_of_role("learner")
    paced = {node for p in program.paced for node in p.schedule.firings}
    return (
        len(learners) == 1
        and (graph.nodes[learners[0]].replicas == 1 or graph.nodes[learners[0]].is_group)
        and paced.isdisjoint([*learners, *graph.nodes_of_role("collector")])
        and all(p.source.node in paced | set(learners) for p in program.paced)
    )
