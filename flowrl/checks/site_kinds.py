"""Finds the sites whose rounds are not synchronised with those of the others, and the sites that may come and go.

On a *free* site, all nodes that fire may lack tokens. No site waits for its rounds, and all its firings count, wherever
the run is cut. On a *paced* site, all nodes that fire are paced, such as evaluators. It may be some versions behind, so
that an evaluation does not block the learner that it evaluates. A verdict cuts at the version that was evaluated, so
other learners' states need not be kept.

An *elastic* site can be lost and started again while the others go on, because none of them waits for it in particular,
and it holds nothing that they cannot do without.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowrl.checks.lossy_edges import may_lack_tokens, queue_count, with_paced_nodes
from flowrl.core.errors import UsageError
from flowrl.graph.model import Edge
from flowrl.graph.replica_pairs import replica_pairs_of
from flowrl.graph.site_layout import SiteLayout

if TYPE_CHECKING:
    from flowrl.checks.check import CheckedGraph

QUEUED_VERSIONS = 2  # versions that may wait while another one is evaluated


def free_sites(checked: CheckedGraph, layout: SiteLayout) -> frozenset[str]:
    """Return the sites on which only free nodes fire. Without any other site there is none: rounds synchronise them."""
    program = checked.program
    free_nodes = with_paced_nodes(program, may_lack_tokens(program.round))
    bound: set[str] = set()
    free: set[str] = set()
    for (node, _), site in layout.site_of.items():
        if checked.graph.nodes[node].fires:
            (free if node in free_nodes else bound).add(site)
    return frozenset(free - bound) if bound else frozenset()


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


def elastic_sites(checked: CheckedGraph, layout: SiteLayout) -> frozenset[str]:
    """Return the sites that can be lost and started again while the others go on. Each has a process of its own."""
    processes = [site for site, kind in layout.kinds.items() if kind == "process"]
    return frozenset(site for site in processes if not inelastic_reason(checked, layout, site))


def require_later_sites_elastic(checked: CheckedGraph, layout: SiteLayout) -> None:
    """Refuse a placement in which others would wait for a site without which the run may begin."""
    for site in layout.later:
        if why := inelastic_reason(checked, layout, site):
            raise UsageError(
                f"placement: '{site}' may join later than the run, and the others cannot do without it: {why}"
            )


def inelastic_reason(checked: CheckedGraph, layout: SiteLayout, site: str) -> str:
    """Return why a run cannot go on without a site; empty if it can."""
    return next(_inelastic_reasons(checked, layout, site), "")


def _inelastic_reasons(checked: CheckedGraph, layout: SiteLayout, site: str) -> Iterator[str]:
    graph = checked.graph
    own = {node for node, _ in layout.instances_on(site)}
    if not own:
        yield "it passes on versions of states"
    for name in sorted(own & set(graph.nodes_of_role("learner"))):
        yield f"'{name}' would lose what it has learned"
    paced = {node for p in checked.program.paced for node in p.schedule.firings}
    for name in sorted(own & paced):
        yield f"'{name}' fires after certain versions"
    for edge in graph.edges:
        yield from _reasons_of_edge(checked, layout, site, edge)


def _reasons_of_edge(
    checked: CheckedGraph, layout: SiteLayout, site: str, edge: Edge
) -> Iterator[str]:
    """Yield why other sites wait for this one because of an edge between them, or it for them."""
    graph, site_of, to = checked.graph, layout.site_of, edge.to.node
    ends = [
        (site_of[edge.sources[pair[0]].node, pair[1]] == site, site_of[to, pair[2]] == site)
        for pair in replica_pairs_of(graph, edge)
    ]
    leaves, arrives = (True, False) in ends, (False, True) in ends
    host = layout.host(site)
    for pair in replica_pairs_of(graph, edge) if host else ():
        others = {site_of[edge.sources[pair[0]].node, pair[1]], site_of[to, pair[2]]}
        if site in others and any(layout.host(other) == host for other in others - {site}):
            yield f"{edge}: both ends are on '{host}', and the site may be started again on another host"
    if edge.kind == "link" and (leaves or arrives):
        yield f"{edge}: the calls of '{to}' go from site to site"
    elif edge.kind == "state":
        if leaves:
            yield f"{edge}: '{to}' reads its state"
        is_newest = edge.latest or site_of[edge.source.node, 0] in free_sites(checked, layout)
        if arrives and not is_newest:
            yield f"{edge}: it reads the version of a certain round; write 'latest: true'"
    elif edge.kind == "stream":
        is_lossy = edge.when_full == "drop_oldest"
        if arrives and not is_lossy:
            yield f"{edge}: its sources wait for it; write 'when_full: drop_oldest'"
        if leaves and to not in may_lack_tokens(checked.program.round):
            yield f"{edge}: '{to}' waits for its tokens"
        elif leaves and not is_lossy and queue_count(graph, edge) > 1:
            yield f"{edge}: '{to}' waits for a token of each replica; write 'merge: any'"
