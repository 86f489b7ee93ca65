"""Positions where a run may be cut, worked out from the program and the limits.

A cut is the last position that counts, and all that hangs on it: `(3,)` ends round 3, `(3, 1, 0, 7)` ends with firing 7
of the instance in slot 1, and with what it paces. Rounds count from the beginning of the warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens
from flowrl.checks.serial_program import PacedSchedule, Schedule, SerialProgram
from flowrl.core.wording import limit_reason
from flowrl.graph.model import Limits
from flowrl.runtime.executor import Reason
from flowrl.runtime.site_state import Position

Why = tuple[Reason, str]

RANKS: tuple[Reason, ...] = ("verdict", "train_iters", "steps", "rounds")  # at the same position


def includes(cut: Position, position: Position) -> bool:
    """Whether a position comes before a cut."""
    return position[: len(cut)] <= cut


def is_earlier(cut: Position, why: Why, than: Position, for_it: Why) -> bool:
    """Whether a cut comes before another, or in its place."""
    if cut == than:
        return _rank(why) < _rank(for_it)
    return (*cut, inf) < (*than, inf)


def _rank(why: Why) -> int:
    return RANKS.index(why[0]) if why[0] in RANKS else len(RANKS)


class CutPlanner:
    """Where a program can be cut."""

    def __init__(self, checked: CheckedGraph, limits: Limits) -> None:
        self.checked, self.limits = checked, limits
        self.program = checked.program
        self.warm_rounds = sum(warm.rounds for warm in self.program.warmup)
        self.learner = next(iter(checked.graph.nodes_of_role("learner")), None)
        self.learner_starves = self.learner is not None and self._starves(self.learner)
        self.steps = self._steps()

    def _starves(self, name: str) -> bool:
        """Whether it is not known how often a node fires in a round: it may find no tokens, or who paces it may."""
        paced = _paced_part(self.program, name)
        schedules = _parts(self.program) if paced is None else [paced.schedule]
        starves = any(name in may_lack_tokens(schedule) for schedule in schedules)
        return starves or (paced is not None and self._starves(paced.source.node))

    def soon(self, rounds: int) -> Position:
        """In this round: where `--train-iters` cuts again, if the first learner fires in it."""
        if self.learner is None or self.learner_starves:
            return (rounds,)
        fired = firings_before(self.program, rounds + 1, self.learner)
        cut = firing_at(self.program, self.learner, fired - 1) if fired else None
        return cut if cut is not None and cut[0] == rounds else (rounds,)

    def known(self) -> Iterator[tuple[Position, Why]]:
        """The cuts that the limits make, as far as they are known before the run."""
        limits, warm = self.limits, self.warm_rounds
        if limits.train_iters is not None and (cut := self._after(limits.train_iters)):
            yield cut, asked("train_iters", limits.train_iters)
        if limits.rounds is not None:
            yield (warm + limits.rounds - 1,), asked("rounds", limits.rounds)
        if limits.steps is not None and self.steps is not None:
            before, each = self.steps
            rounds = max(-(-(limits.steps - before) // each), 1)
            yield (warm + rounds - 1,), asked("steps", limits.steps)
        if not self.program.round.order:
            yield (warm - 1,), ("done", "no node fires in rounds")

    def _after(self, iters: int) -> Position | None:
        """Right after so many firings of the first learner, if it is known to fire so often."""
        if self.learner is None or self.learner_starves:
            return None
        return firing_at(self.program, self.learner, iters - 1)

    def _steps(self) -> tuple[int, int] | None:
        """Env steps of the warm-up and of a round, where every collector's number is known."""
        found = []
        for schedule in _parts(self.program):
            steps = 0
            for name in self.checked.graph.nodes_of_role("collector"):
                one = self._steps_of(name)
                if one is None:
                    return None
                steps += one * schedule.firings.get(name, 0)
            found.append(steps)
        warm = sum(w.rounds * s for w, s in zip(self.program.warmup, found[:-1], strict=True))
        return (warm, found[-1]) if found[-1] else None

    def _steps_of(self, name: str) -> int | None:
        """Env steps of one firing of a collector's replicas, if all its firings are alike."""
        spec, steps = self.checked.graph.nodes[name], self.checked.facts[name].env_steps
        in_rounds = name in self.program.round.order and name not in may_lack_tokens(
            self.program.round
        )
        if steps is None or not in_rounds or spec.on_failure == "ignore":
            return None
        return steps * spec.replicas


def _parts(program: SerialProgram) -> list[Schedule]:
    """What rounds consist of: those of each phase of the warm-up, and those after."""
    return [*(warm.schedule for warm in program.warmup), program.round]


def part_in(program: SerialProgram, rounds: int) -> Schedule:
    """What a round consists of."""
    for warm in program.warmup:
        if rounds < warm.rounds:
            return warm.schedule
        rounds -= warm.rounds
    return program.round


def firings_before(program: SerialProgram, rounds: int, name: str) -> int:
    """How often a node has fired before a round."""
    paced = _paced_part(program, name)
    if paced is not None:
        versions = firings_before(program, rounds, paced.source.node)
        return versions // paced.every * paced.schedule.firings[name]
    fired = 0
    for warm in program.warmup:
        here = min(warm.rounds, rounds)
        fired += here * warm.schedule.firings.get(name, 0)
        rounds -= here
    return fired + rounds * program.round.firings.get(name, 0)


def firing_at(program: SerialProgram, name: str, firing: int) -> Position | None:
    """Where a node fires for the n-th time (from 0), if ever."""
    paced = _paced_part(program, name)
    if paced is None:
        return _firing_in_rounds(program, name, firing)
    pace, schedule = firing // paced.schedule.firings[name], paced.schedule
    at = firing_at(program, paced.source.node, paced.every * (pace + 1) - 1)
    number = 1 + program.paced.index(paced)
    return None if at is None else (*at, number, schedule.order.index(name), 0, firing)


def _firing_in_rounds(program: SerialProgram, name: str, firing: int) -> Position | None:
    begun, fired = 0, 0
    lengths = [warm.rounds for warm in program.warmup]
    for schedule, rounds in zip(_parts(program), [*lengths, None], strict=True):
        each = schedule.firings.get(name, 0)
        if each and (rounds is None or firing < fired + each * rounds):
            return (begun + (firing - fired) // each, schedule.order.index(name), 0, firing)
        begun, fired = begun + (rounds or 0), fired + each * (rounds or 0)
    return None


def _paced_part(program: SerialProgram, name: str) -> PacedSchedule | None:
    """What a state paces, and this node is in."""
    return next((paced for paced in program.paced if name in paced.schedule.firings), None)


def asked(reason: Reason, amount: int) -> Why:
    """Why a limit cuts."""
    what = {"train_iters": "train iteration", "steps": "env step", "rounds": "round"}[reason]
    return reason, limit_reason(amount, what)
