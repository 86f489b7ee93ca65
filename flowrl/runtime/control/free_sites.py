"""Sites that fire when they can: all that fires there depends on edges that drop.

Their rounds have nothing to do with those of others: nobody waits for them, and where a run is cut, all that they have
done counts.
"""

from __future__ import annotations

from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens
from flowrl.checks.serial_program import SerialProgram
from flowrl.graph.site_layout import SiteLayout


def free_sites(checked: CheckedGraph, layout: SiteLayout) -> frozenset[str]:
    """The sites that nothing but free nodes fire on; where that is all, rounds hold them together as usual."""
    free = _free_nodes(checked.program)
    bound: set[str] = set()
    any_input_nodes: set[str] = set()
    for (node, _), site in layout.site_of.items():
        if checked.graph.nodes[node].fires:
            (any_input_nodes if node in free else bound).add(site)
    return frozenset(any_input_nodes - bound) if bound else frozenset()


def _free_nodes(program: SerialProgram) -> set[str]:
    """The nodes that may find too few tokens, and those that are paced by one of them."""
    paced = {name: paced.source.node for paced in program.paced for name in paced.schedule.firings}
    free = may_lack_tokens(program.round)
    while more := {name for name, pacer in paced.items() if pacer in free} - free:
        free |= more
    return free
