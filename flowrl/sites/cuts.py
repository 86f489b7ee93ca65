"""Positions where a run may be cut, worked out from the program and the limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flowrl.checks.check import Checked
from flowrl.engine.engine import Reason
from flowrl.engine.runner import Position
from flowrl.errors import UsageError
from flowrl.graph import Limits


class Stop(NamedTuple):
    """After so many firings (in all) of the node in a slot, in a round (those of the warm-up count)."""

    round: int
    slot: int  # one more than the last slot: at the round's end
    fired: int

    def includes(self, position: Position) -> bool:
        """Whether a firing comes before the cut."""
        if position[:2] != self[:2]:
            return position[:2] < self[:2]
        return position[3] < self.fired


Why = tuple[Reason, str]


class Cuts:
    """Where a program can be cut."""

    def __init__(self, checked: Checked, limits: Limits) -> None:
        self.checked, self.limits = checked, limits
        self.program = checked.program
        self.order = self.program.round.order
        self.warm_rounds = sum(warm.rounds for warm in self.program.warmup)
        names = checked.graph.role("learner")
        self.learner = self.order.index(names[0]) if names and names[0] in self.order else None
        self.steps = self._steps()

    def end(self, rounds: int) -> Stop:
        """The end of a round."""
        return Stop(rounds, len(self.order), 0)

    def soon(self, rounds: int) -> Stop:
        """In a round that no site has begun: where `--train-iters` cuts again, if anything learns."""
        rounds = max(rounds, self.warm_rounds)
        if self.learner is None:
            return self.end(rounds)
        fired = firings_before(self.checked, rounds + 1, self.learner)
        return Stop(rounds, self.learner, fired)

    def known(self) -> Iterator[tuple[Stop, Why]]:
        """The cuts that the limits make, as far as they are known before the run."""
        limits, warm = self.limits, self.warm_rounds
        if limits.train_iters is not None and self.learner is not None:
            yield self._after(limits.train_iters), _asked("train_iters", limits.train_iters)
        if limits.rounds is not None:
            yield self.end(warm + limits.rounds - 1), _asked("rounds", limits.rounds)
        if limits.steps is not None and self.steps is not None:
            before, each = self.steps
            rounds = max(-(-(limits.steps - before) // each), 1)
            yield self.end(warm + rounds - 1), _asked("steps", limits.steps)
        if not self.order:
            yield self.end(warm), ("done", "no node fires in rounds")

    def _after(self, iters: int) -> Stop:
        assert self.learner is not None
        before = firings_before(self.checked, self.warm_rounds, self.learner)
        if iters <= before:
            what = f"{iters} train iterations end in the warm-up"
            raise UsageError(f"{what}, where only the placement 'serial' cuts")
        each = self.program.round.firings[self.order[self.learner]]
        return Stop(self.warm_rounds + (iters - before - 1) // each, self.learner, iters)

    def _steps(self) -> tuple[int, int] | None:
        """Env steps of the warm-up and of a round, where every collector's number is fixed."""
        nodes, found = self.checked.graph.nodes, []
        for part in (*(w.part for w in self.program.warmup), self.program.round):
            steps = 0
            for name in (n for n in part.order if nodes[n].cls.role == "collector"):
                one = self.checked.facts[name].env_steps
                if one is None:
                    return None
                steps += one * part.firings[name] * nodes[name].replicas
            found.append(steps)
        warm = sum(w.rounds * s for w, s in zip(self.program.warmup, found[:-1], strict=True))
        return (warm, found[-1]) if found[-1] else None

    def iterations(self, rounds: int, stop: Stop | None) -> int:
        """Firings of the first learner at a cut, or after so many rounds."""
        if self.learner is None:
            return 0
        if stop is None:
            return firings_before(self.checked, rounds, self.learner)
        if stop.slot == self.learner:
            return stop.fired
        return firings_before(self.checked, stop.round + (self.learner < stop.slot), self.learner)


def firings_before(checked: Checked, rounds: int, slot: int) -> int:
    """How often a node of the main program has fired before a round; those of the warm-up count."""
    program = checked.program
    name = program.round.order[slot]
    fired = 0
    for warm in program.warmup:
        here = min(warm.rounds, rounds)
        fired += here * warm.part.firings.get(name, 0)
        rounds -= here
    return fired + rounds * program.round.firings[name]


def _asked(reason: Reason, amount: int) -> Why:
    what = {"train_iters": "train iterations", "steps": "env steps"}.get(reason, reason)
    return reason, f"{amount} {what} were asked for"
