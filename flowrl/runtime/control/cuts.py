"""Positions where a run may be cut, derived from the serial program and the limits.

A cut is the last position that counts, together with all positions that it is a prefix of: `(3,)` ends round 3,
`(3, 1, 0, 7)` ends with firing 7 of the instance in slot 1 and with what that firing paces. Rounds count from
the beginning of the warm-up.
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
    """Whether a position counts under a cut."""
    return position[: len(cut)] <= cut


def is_earlier(cut: Position, why: Why, other: Position, other_why: Why) -> bool:
    """Whether a cut comes before another one, or replaces it at the same position."""
    if cut == other:
        return _rank(why) < _rank(other_why)
    return (*cut, inf) < (*other, inf)


def _rank(why: Why) -> int:
    return RANKS.index(why[0]) if why[0] in RANKS else len(RANKS)


class CutPlanner:
    """Finds the cuts of a program."""

    def __init__(self, checked: CheckedGraph, limits: Limits) -> None:
        self.checked, self.limits = checked, limits
        self.program = checked.program
        self.warm_rounds = sum(warm.rounds for warm in self.program.warmup)
        self.learner = next(iter(checked.graph.nodes_of_role("learner")), None)
        self.learner_rate_unknown = self.learner is not None and self._rate_unknown(self.learner)
        self.steps = self._steps()

    def _rate_unknown(self, name: str) -> bool:
        """Whether a node may lack tokens, or one that paces it may: then nobody knows how often it fires in a
        round."""
        paced = _paced_schedule(self.program, name)
        schedules = _schedules(self.program) if paced is None else [paced.schedule]
        unknown = any(name in may_lack_tokens(schedule) for schedule in schedules)
        return unknown or (paced is not None and self._rate_unknown(paced.source.node))

    def soon(self, rounds: int) -> Position:
        """The cut in this round for a request of the clock or a person.

        If the first learner fires in it, that is where `--train-iters` would cut, so that the run can be repeated.
        """
        if self.learner is None or self.learner_rate_unknown:
            return (rounds,)
        fired = firings_before(self.program, rounds + 1, self.learner)
        cut = firing_at(self.program, self.learner, fired - 1) if fired else None
        return cut if cut is not None and cut[0] == rounds else (rounds,)

    def known(self) -> Iterator[tuple[Position, Why]]:
        """The cuts of the limits, as far as they are known before the run."""
        limits, warm = self.limits, self.warm_rounds
        if limits.train_iters is not None and (cut := self._after_train_iters(limits.train_iters)):
            yield cut, limit_reached("train_iters", limits.train_iters)
        if limits.rounds is not None:
            yield (warm + limits.rounds - 1,), limit_reached("rounds", limits.rounds)
        if limits.steps is not None and self.steps is not None:
            before, each = self.steps
            rounds = max(-(-(limits.steps - before) // each), 1)
            yield (warm + rounds - 1,), limit_reached("steps", limits.steps)
        if not self.program.round.order:
            yield (warm - 1,), ("done", "no node fires in rounds")

    def _after_train_iters(self, iters: int) -> Position | None:
        """The position of the first learner's last firing, if it is known when it fires."""
        if self.learner is None or self.learner_rate_unknown:
            return None
        return firing_at(self.program, self.learner, iters - 1)

    def _steps(self) -> tuple[int, int] | None:
        """The env steps of the warm-up and of a round, if those of every collector are known."""
        found = []
        for schedule in _schedules(self.program):
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
        """The env steps of one firing of all replicas of a collector, if all firings do the same number."""
        spec, steps = self.checked.graph.nodes[name], self.checked.facts[name].env_steps
        in_rounds = name in self.program.round.order and name not in may_lack_tokens(
            self.program.round
        )
        if steps is None or not in_rounds or spec.on_failure == "ignore":
            return None
        return steps * spec.replicas


def _schedules(program: SerialProgram) -> list[Schedule]:
    """The schedules of rounds: one for each phase of the warm-up, and the one that follows."""
    return [*(warm.schedule for warm in program.warmup), program.round]


def schedule_of_round(program: SerialProgram, rounds: int) -> Schedule:
    """The schedule of a round."""
    for warm in program.warmup:
        if rounds < warm.rounds:
            return warm.schedule
        rounds -= warm.rounds
    return program.round


def firings_before(program: SerialProgram, rounds: int, name: str) -> int:
    """How often a node has fired before a round begins."""
    paced = _paced_schedule(program, name)
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
    """The position at which a node fires for the n-th time (from 0), or None if it never does."""
    paced = _paced_schedule(program, name)
    if paced is None:
        return _firing_in_rounds(program, name, firing)
    pace, schedule = firing // paced.schedule.firings[name], paced.schedule
    at = firing_at(program, paced.source.node, paced.every * (pace + 1) - 1)
    number = 1 + program.paced.index(paced)
    return None if at is None else (*at, number, schedule.order.index(name), 0, firing)


def _firing_in_rounds(program: SerialProgram, name: str, firing: int) -> Position | None:
    begun, fired = 0, 0
    lengths = [warm.rounds for warm in program.warmup]
    for schedule, rounds in zip(_schedules(program), [*lengths, None], strict=True):
        each = schedule.firings.get(name, 0)
        if each and (rounds is None or firing < fired + each * rounds):
            return (begun + (firing - fired) // each, schedule.order.index(name), 0, firing)
        begun, fired = begun + (rounds or 0), fired + each * (rounds or 0)
    return None


def _paced_schedule(program: SerialProgram, name: str) -> PacedSchedule | None:
    """The paced schedule that a node belongs to."""
    return next((paced for paced in program.paced if name in paced.schedule.firings), None)


def limit_reached(reason: Reason, amount: int) -> Why:
    """The reason of a cut by a limit."""
    what = {"train_iters": "train iteration", "steps": "env step", "rounds": "round"}[reason]
    return reason, limit_reason(amount, what)
