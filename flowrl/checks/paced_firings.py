"""Says which states have a `lag` that counts firings of their node instead of rounds."""

from __future__ import annotations

from flowrl.checks.firing_counts import paced_schedule_of
from flowrl.checks.lossy_edges import may_lack_tokens_anywhere
from flowrl.checks.serial_program import SerialProgram
from flowrl.graph.model import Edge


def lags_behind_firings(program: SerialProgram, edge: Edge) -> bool:
    """Return whether the lag of a state edge counts firings of its source.

    This is so if the source is paced, and how often it fires follows from the program.
    """
    if edge.kind != "state" or edge.every is not None or edge.latest:
        return False
    pacers = [edge.source.node]
    while (paced := paced_schedule_of(program, pacers[-1])) is not None:
        pacers.append(paced.source.node)
    return len(pacers) > 1 and may_lack_tokens_anywhere(program).isdisjoint(pacers)
