"""How often nodes have fired, and how many env steps were made, after a number of rounds; the position of a firing.

Rounds count from the start of the warm-up. Nodes that may lack tokens fire less often than is said here.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrl.checks.lossy_edges import may_lack_tokens, may_lack_tokens_anywhere
from flowrl.checks.serial_program import PacedSchedule, Schedule, SerialProgram
from flowrl.core.facts import Facts
from flowrl.graph.model import Edge, Graph


def schedule_of_round(program: SerialProgram, round_number: int) -> Schedule:
    for warm in program.warmup:
        if round_number < warm.rounds:
            return warm.schedule
        round_number -= warm.rounds
    return program.round


def firings_before(program: SerialProgram, rounds: int, name: str) -> int:
    """Return how often a node has fired after this number of rounds."""
    paced = paced_schedule_of(program, name)
    if paced is not None:
        versions = firings_before(program, rounds, paced.source.node)
        return versions // paced.every * paced.schedule.firings[name]
    fired = 0
    for warm in program.warmup:
        phase_rounds = min(warm.rounds, rounds)
        fired += phase_rounds * warm.schedule.firings.get(name, 0)
        rounds -= phase_rounds
    return fired + rounds * program.round.firings.get(name, 0)


def firing_at(program: SerialProgram, name: str, firing: int) -> tuple[int, ...] | None:
    """Return the position of a node's firing with this number, from 0, or None if the node never fires so often."""
    paced = paced_schedule_of(program, name)
    if paced is None:
        return _firing_in_rounds(program, name, firing)
    pace, schedule = firing // paced.schedule.firings[name], paced.schedule
    at = firing_at(program, paced.source.node, paced.every * (pace + 1) - 1)
    number = 1 + program.paced.index(paced)
    return None if at is None else (*at, number, schedule.order.index(name), 0, firing)


def _firing_in_rounds(program: SerialProgram, name: str, firing: int) -> tuple[int, ...] | None:
    begun, fired = 0, 0
    lengths = [warm.rounds for warm in program.warmup]
    for schedule, rounds in zip(program.round_schedules, [*lengths, None], strict=True):
        each = schedule.firings.get(name, 0)
        if each and (rounds is None or firing < fired + each * rounds):
            return (begun + (firing - fired) // each, schedule.order.index(name), 0, firing)
        begun, fired = begun + (rounds or 0), fired + each * (rounds or 0)
    return None


def paced_schedule_of(program: SerialProgram, name: str) -> PacedSchedule | None:
    """Return the paced schedule of a node, or None if the node fires in rounds."""
    return next((paced for paced in program.paced if name in paced.schedule.firings), None)


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


def known_env_steps(
    graph: Graph, program: SerialProgram, facts: Mapping[str, Facts]
) -> tuple[int, int] | None:
    """Return the env steps of the warm-up and of a round, if the steps of every collector are known."""
    found = []
    for schedule in program.round_schedules:
        steps = 0
        for name in graph.nodes_of_role("collector"):
            one = _steps_of_firing(graph, program, facts, name)
            if one is None:
                return None
            steps += one * schedule.firings.get(name, 0)
        found.append(steps)
    warm = sum(w.rounds * s for w, s in zip(program.warmup, found[:-1], strict=True))
    return (warm, found[-1]) if found[-1] else None


def _steps_of_firing(
    graph: Graph, program: SerialProgram, facts: Mapping[str, Facts], name: str
) -> int | None:
    """Return the env steps of one firing of all replicas of a collector, if all firings have the same number."""
    spec, steps = graph.nodes[name], facts[name].env_steps if name in facts else None
    in_rounds = name in program.round.order and name not in may_lack_tokens(program.round)
    if steps is None or not in_rounds or spec.on_failure == "ignore":
        return None
    return steps * spec.replicas
