"""The engine: executes the serial program of a graph, up to a cut.

One site fires the whole program in its own order, so nothing beyond a cut is ever done and nothing
has to be taken back.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Literal, Protocol

from flowrl.checks.check import Checked
from flowrl.checks.losses import starving
from flowrl.checks.program import Part, WarmUp
from flowrl.context import Record, Verdict
from flowrl.engine.guard import Guard, Happened
from flowrl.engine.runner import RAISED, Runner
from flowrl.engine.versions import Versions
from flowrl.engine.wiring import make
from flowrl.errors import NodeError
from flowrl.graph import Limits
from flowrl.ports import StateOut
from flowrl.state import Count, State

Reason = Literal["verdict", "steps", "train_iters", "rounds", "time", "interrupt", "done"]
Fire = Callable[[], None]
Steps = list[
    tuple[Fire, int]
]  # a part, flat: one firing of each instance in its order, and how often


class Sink(Protocol):
    """Who is told what nodes record, in the order of the program."""

    def record(self, runner: Runner, record: Record) -> None:
        """One record of one firing."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The position that ended a run, and what had been done there."""

    reason: Reason
    why: str
    rounds: int
    done: Count


class _Cut(Exception):
    """Ends the program from within."""

    def __init__(self, reason: Reason, why: str) -> None:
        self.reason, self.why = reason, why
        super().__init__(why)


class Engine:
    """Runs a sound graph in one thread."""

    def __init__(
        self, checked: Checked, sink: Sink, seed: int | None = None, limits: Limits | None = None
    ) -> None:
        self.checked, self.sink = checked.demand(), sink
        self.graph, self.program = checked.graph, checked.program
        self.limits = limits or self.graph.limits
        self.seed = self.graph.seed if seed is None else seed
        self.happened = Happened()
        self.rounds = 0  # whole rounds so far
        self.wired = make(checked, self.seed)
        self._asked: tuple[Reason, str] | None = None  # a cut that somebody outside asks for
        self._verdict: str | None = None
        self._deadline_s = float("inf")
        self._learners = [r for n in self.graph.role("learner") for r in self.wired.runners[n]]
        self._collectors = [r for n in self.graph.role("collector") for r in self.wired.runners[n]]
        for runner in self.wired.all():
            runner.on_record = self._record

    # what has been done

    @property
    def done(self) -> Count:
        """Env steps and episodes of the collectors, and the first learner's firings."""
        return Count(
            sum(r.did.env_steps for r in self._collectors),
            sum(r.did.episodes for r in self._collectors),
            self._learners[0].fired if self._learners else 0,
        )

    def weights(self) -> dict[str, State]:
        """The newest version of every learner's states, by `learner.port`."""
        return {
            f"{runner.key}.{name}": Versions(runner, name).newest()
            for runner in self._learners
            for name, port in runner.spec.cls.ports.items()
            if isinstance(port, StateOut)
        }

    def digest(self) -> str:
        """The SHA-256 over the learners' weights, sorted by name."""
        return digest_of(self.weights())

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        """Cut after the next train iteration (from another thread, or a signal)."""
        self._asked = (reason, why)

    def close(self) -> list[NodeError]:
        """Close all nodes; what they raised."""
        return self.wired.close()

    # the program

    def run(self) -> Cut:
        """Execute the program until the earliest cut; nodes stay open for whoever looks at them."""
        site = self.wired.site
        site.last_s = time.perf_counter()
        if self.limits.time_s is not None:
            self._deadline_s = site.last_s + self.limits.time_s
        try:
            self._warm_up()
            self._all_rounds()
        except _Cut as cut:
            self.happened.dropped = self.wired.dropped()
            return Cut(cut.reason, cut.why, self.rounds, self.done)
        raise AssertionError("the program ended without a cut")

    def _warm_up(self) -> None:
        site = self.wired.site
        for number, warm in enumerate(self.program.warmup, 1):
            site.phase = f"warm-up {number}, "
            self.wired.connect([warm.part])
            self._set(warm)
            steps = self._steps(warm.part)
            for number_of_round in range(warm.rounds):
                site.round = number_of_round
                self._round(steps)
                self._cut_if_asked()
            self._set(warm, back=True)
        site.phase = ""
        if self.program.warmup:
            self.wired.connect([self.program.round])

    def _set(self, warm: WarmUp, back: bool = False) -> None:
        """Set what differs in a phase, or set it back to what the graph says."""
        for name, values in warm.phase.settings.items():
            usual = {key: getattr(self.graph.nodes[name].config, key) for key in values}
            for runner in self.wired.runners[name]:
                try:
                    runner.node.reconfigure(**(usual if back else values))
                except RAISED as error:
                    doing = f"taking the settings {', '.join(values)}"
                    raise NodeError(runner.key, doing, error) from error

    def _all_rounds(self) -> None:
        part = self.program.round
        if not part.order:
            raise _Cut("done", "no node fires in rounds")
        steps, limits = self._steps(part), self.limits
        learns = bool(self._learners) and self._learners[0].spec.name in part.order
        cuts_itself = learns and not starving(part)
        while True:
            self.wired.site.round = self.rounds
            self._round(steps)
            self.rounds += 1
            if limits.steps is not None and self.done.env_steps >= limits.steps:
                raise _Cut("steps", f"{limits.steps} env steps were asked for")
            if self.rounds == limits.rounds:
                raise _Cut("rounds", f"{limits.rounds} rounds were asked for")
            if not cuts_itself:  # else after a train iteration, where --train-iters cuts again
                self._cut_if_asked()

    def _round(self, steps: Steps) -> None:
        """All firings of one round."""
        self._fire_all(steps)
        for versions in self.wired.versions.values():
            versions.end_round()

    def _fire_all(self, steps: Steps) -> None:
        for fire, times in steps:
            for _ in repeat(None, times):
                fire()
                if self._verdict is not None:
                    raise _Cut("verdict", self._verdict)

    def _cut_if_asked(self) -> None:
        """What the clock or somebody outside wants."""
        if self._asked is not None:
            raise _Cut(*self._asked)
        if self.wired.site.last_s >= self._deadline_s:
            raise _Cut("time", f"{self.limits.time_s:g} s were asked for")

    # a part as steps

    def _steps(self, part: Part) -> Steps:
        hungry = starving(part)
        return [
            (self._fire_of(runner, name in hungry), part.firings[name])
            for name in part.order
            for runner in self.wired.runners[name]
        ]

    def _fire_of(self, runner: Runner, starves: bool) -> Fire:
        """One firing with all that belongs to it, and no more than that."""
        fire = runner.fire
        if runner.spec.on_failure != "stop":
            fire = Guard(runner, self.happened, self.wired.renew).fire
        paced = [
            (p.every, self._steps(p.part))
            for p in self.program.paced
            if p.source.node == runner.spec.name and runner.ctx.replica == 0
        ]
        if paced:
            fire = self._with_paced(runner, fire, paced)
        if self._learners and runner is self._learners[0]:
            fire = self._with_cuts(runner, fire)
        return _if_ready(runner, fire) if starves else fire

    def _with_paced(self, runner: Runner, fire: Fire, paced: list[tuple[int, Steps]]) -> Fire:
        """A paced part fires right after the version that it sees."""

        def fire_with_paced() -> None:
            fire()
            for every, steps in paced:
                if runner.fired % every == 0:
                    self._fire_all(steps)

        return fire_with_paced

    def _with_cuts(self, learner: Runner, fire: Fire) -> Fire:
        """After a train iteration, and what it paces, is where most cuts fall."""
        limit = self.limits.train_iters

        def fire_with_cuts() -> None:
            fire()
            if self._verdict is not None:
                raise _Cut("verdict", self._verdict)
            if learner.fired == limit:
                raise _Cut("train_iters", f"{limit} train iterations were asked for")
            self._cut_if_asked()

        return fire_with_cuts

    # what nodes tell

    def _record(self, runner: Runner, record: Record) -> None:
        if isinstance(record, Verdict) and self._verdict is None:
            self._verdict = record.reason
        self.sink.record(runner, record)


def _if_ready(runner: Runner, fire: Fire) -> Fire:
    def fire_if_ready() -> None:
        if runner.ready():
            fire()

    return fire_if_ready


def digest_of(weights: Mapping[str, State]) -> str:
    """The SHA-256 over named states: names, dtypes, shapes and bytes of their sorted arrays."""
    digest = hashlib.sha256()
    for key in sorted(weights):
        arrays = weights[key].arrays
        for name in sorted(arrays):
            array = arrays[name]
            digest.update(f"{key}/{name}:{array.dtype}:{array.shape};".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()
