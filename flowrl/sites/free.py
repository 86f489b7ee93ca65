"""Sites that fire when they can: all that fires there depends on edges that drop.

Their rounds have nothing to do with those of others: nobody waits for them, and where a run is cut, all that they have
done counts.
"""

from __future__ import annotations

from flowrl.checks.check import Checked
from flowrl.checks.losses import starving
from flowrl.checks.program import Program
from flowrl.sites.layout import Layout


def free_sites(checked: Checked, layout: Layout) -> frozenset[str]:
    """The sites that nothing but free nodes fire on; where that is all, rounds hold them together as usual."""
    free = {node for node in checked.graph.nodes if _is_free(checked.program, node)}
    bound: set[str] = set()
    loose: set[str] = set()
    for (node, _), site in layout.where.items():
        if checked.graph.nodes[node].fires:
            (loose if node in free else bound).add(site)
    return frozenset(loose - bound) if bound else frozenset()


def _is_free(program: Program, name: str) -> bool:
    """Whether a node may find too few tokens, or is paced by one that may."""
    for paced in program.paced:
        if name in paced.part.firings:
            return _is_free(program, paced.source.node)
    return name in starving(program.round)
