"""Positions where a run may be cut, derived from the serial program and the limits.

A cut is the last position that counts. All positions of which it is a prefix count as well: `(3,)` is the end of
round 3, and `(3, 1, 0, 7)` is firing 7 of replica 0 of the node with index 1, with all firings that it paces. Rounds
count from the start of the warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import firing_at, known_env_steps, paced_schedule_of
from flowrl.checks.lossy_edges import may_lack_tokens
from flowrl.checks.site_kinds import is_paced_by_one_learner
from flowrl.graph.model import Limits
from flowrl.runtime.executor import CutReason, Reason, limit_reached
from flowrl.runtime.site_state import Position

# Of several reasons for a cut at the same position, the first one wins.
REASON_ORDER: tuple[Reason, ...] = ("verdict", "train_iters", "steps", "rounds")


def includes(cut: Position, position: Position) -> bool:
    """Return whether a position counts, given the cut."""
    return position[: len(cut)] <= cut


def completed_at(cut: Position) -> int:
    """Return the number of rounds that are completed at a cut."""
    return cut[0] + (len(cut) == 1)


def is_earlier(cut: Position, why: CutReason, other: Position, other_why: CutReason) -> bool:
    """Return whether a cut comes before another one, or replaces it at the same position."""
    if cut == other:
        return _rank(why) < _rank(other_why)
    return (*cut, inf) < (*other, inf)


def _rank(why: CutReason) -> int:
    return REASON_ORDER.index(why[0]) if why[0] in REASON_ORDER else len(REASON_ORDER)


class CutPlanner:
    """Finds the cuts of a program, for its limits and for requests."""

    def __init__(self, checked: CheckedGraph, limits: Limits) -> None:
        self.checked, self.limits = checked, limits
        self.program = checked.program
        self.warm_up_rounds = sum(warm.rounds for warm in self.program.warmup)
        self.learner = checked.graph.first_learner
        # Whether it is unknown how often the first learner fires in a round.
        self.learner_rate_unknown = self.learner is not None and self._rate_unknown(self.learner)
        # The env steps of the warm-up and of a round, if they are known before the run.
        self.known_steps = known_env_steps(checked.graph, checked.program, checked.facts)

    @property
    def may_cut_past_rounds(self) -> bool:
        """Whether a cut may fall in a round before that of the learner, for other reasons than a version's evaluation.

        An evaluator that the only learner paces cuts at the version that it has evaluated. Verdicts of other nodes, and
        limits that are only known when they are reached, may cut anywhere in earlier rounds.
        """
        if self.learner_rate_unknown or not is_paced_by_one_learner(self.checked):
            return True
        if self.limits.steps is not None and self.known_steps is None:
            return True
        paced = {node for p in self.program.paced for node in p.schedule.firings}
        nodes = self.checked.graph.nodes.values()
        return any(
            spec.cls.may_end_run and spec.cls.role != "learner" and spec.name not in paced
            for spec in nodes
        )

    def _rate_unknown(self, name: str) -> bool:
        """Return whether a node, or one that paces it, may lack tokens. Then its firings in a round are not known."""
        paced = paced_schedule_of(self.program, name)
        schedules = self.program.round_schedules if paced is None else [paced.schedule]
        unknown = any(name in may_lack_tokens(schedule) for schedule in schedules)
        return unknown or (paced is not None and self._rate_unknown(paced.source.node))

    def known_cuts(self, may_miss_firings: bool = False) -> Iterator[tuple[Position, CutReason]]:
        """Yield the cuts of the limits that are known before the run.

        If sites `may_miss_firings`, because they are lost and started again, the env steps must be counted.
        """
        limits, warm_up_rounds = self.limits, self.warm_up_rounds
        if limits.train_iters is not None and (cut := self._after_train_iters(limits.train_iters)):
            yield cut, limit_reached("train_iters", limits.train_iters)
        if limits.rounds is not None:
            yield (warm_up_rounds + limits.rounds - 1,), limit_reached("rounds", limits.rounds)
        if limits.steps is not None and self.known_steps is not None and not may_miss_firings:
            yield (self.round_of(limits.steps),), limit_reached("steps", limits.steps)
        if not self.program.round.order:
            yield (warm_up_rounds - 1,), ("done", "no node fires in rounds")

    def round_of(self, steps: int) -> int:
        """Return the round at whose end so many env steps are reached, if no site misses a firing."""
        assert self.known_steps is not None
        in_warm_up, in_round = self.known_steps
        return self.warm_up_rounds + max(-(-(steps - in_warm_up) // in_round), 1) - 1

    def _after_train_iters(self, iters: int) -> Position | None:
        """Return the position of the first learner's firing number `iters`, if it is known before the run."""
        if self.learner is None or self.learner_rate_unknown:
            return None
        return firing_at(self.program, self.learner, iters - 1)
