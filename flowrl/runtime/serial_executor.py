"""The engine: executes the serial program of a graph, up to a cut.

One site fires the whole program in its own order, so nothing beyond a cut is ever done and nothing
has to be taken back.
"""

from __future__ import annotations

import time

from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens
from flowrl.core.context import Record
from flowrl.core.ports import StateOut
from flowrl.core.state import Count, State
from flowrl.core.wording import limit_reason
from flowrl.graph.model import Limits
from flowrl.graph.placement import MAIN
from flowrl.runtime.executor import Cut, InstanceTimes, Reason, weights_digest
from flowrl.runtime.failure_guard import FailureRecord, Irregularities, RecordSink
from flowrl.runtime.instance import Instance
from flowrl.runtime.records import RecordSource
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.status import AgedStatus, read_status


class CutReached(Exception):
    """Ends the program from within."""

    def __init__(self, reason: Reason, why: str) -> None:
        self.reason, self.why = reason, why
        super().__init__(why)


class SerialExecutor(Scheduler):
    """The `Executor` of a graph whose nodes all live on one site: every cut is taken right at its position."""

    def __init__(
        self,
        checked: CheckedGraph,
        sink: RecordSink,
        seed: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.sink, self.irregularities = sink, Irregularities()
        self.limits = limits or checked.graph.limits
        self.seed = checked.graph.seed if seed is None else seed
        super().__init__(checked, self.seed)
        self._asked: tuple[Reason, str] | None = None  # a cut that somebody outside asks for
        self._deadline_s = float("inf")
        self.began_s: float | None = None  # the first firing
        self.ended_s: float | None = None
        self._learners = [
            r for n in self.graph.nodes_of_role("learner") for r in self.instances.by_node[n]
        ]
        self._collectors = [
            r for n in self.graph.nodes_of_role("collector") for r in self.instances.by_node[n]
        ]
        schedule = self.program.round
        learns = self.first_learner in schedule.order and not may_lack_tokens(schedule)
        self._cuts_in_rounds = not learns  # else after a train iteration: --train-iters cuts there

    # what has been done

    @property
    def counts(self) -> Count:
        """Env steps and episodes of the collectors, and the first learner's firings."""
        return Count(
            sum(r.counts.env_steps for r in self._collectors),
            sum(r.counts.episodes for r in self._collectors),
            self._learners[0].fired if self._learners else 0,
        )

    def weights(self) -> dict[str, State]:
        """The newest version of every learner's states, by `learner.port`."""
        return {k: s for instance in self._learners for k, s in states_of(instance).items()}

    def digest(self) -> str:
        """The SHA-256 over the learners' weights, sorted by name."""
        return weights_digest(self.weights())

    def instance_times(self) -> list[InstanceTimes]:
        """Each instance, its firings and its time."""
        return [InstanceTimes(r.key, r.fired, r.busy_s) for r in self.instances.all()]

    def site_statuses(self) -> dict[str, AgedStatus | None]:
        """What there is to see of the one site just now (from any thread)."""
        return {MAIN: AgedStatus(read_status(self))}

    def idle_s(self) -> dict[str, float]:
        """One site alone waits for nobody."""
        return {}

    def irregularity_lines(self) -> list[str]:
        """What made this run differ from a deterministic one, and what would not close."""
        return [*self.irregularities.lines(), *map(str, self.instances.close_errors)]

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        """Cut after the next train iteration (from another thread, or a signal)."""
        self._asked = (reason, why)

    def run(self) -> Cut:
        """Execute the program until the earliest cut; nodes stay open for whoever looks at them."""
        self.began_s = self.site.last_fired_s = time.perf_counter()
        if self.limits.time_s is not None:
            self._deadline_s = self.site.last_fired_s + self.limits.time_s
        try:
            self.execute()
        except CutReached as cut:
            self.ended_s = time.perf_counter()
            self.irregularities.dropped = self.instances.dropped()
            return Cut(cut.reason, cut.why, self.rounds, self.counts)
        raise AssertionError("the program ended without a cut")

    # cuts

    def no_rounds(self) -> None:
        raise CutReached("done", "no node fires in rounds")

    def after_firing(self) -> None:
        if self.deferred_effects:
            self.deferred_effects.do()  # nothing is ever taken back
        if self._verdict is not None and self.has_verdict:
            raise CutReached("verdict", self._verdict.reason)

    def after_iteration(self, learner: Instance) -> None:
        self.after_firing()
        if learner is not self._learners[0]:
            return
        if learner.fired == self.limits.train_iters:
            raise CutReached("train_iters", limit_reason(learner.fired, "train iteration"))
        self._cut_if_asked()

    def after_round(self, warm_up: bool) -> None:
        limits = self.limits
        if not warm_up and limits.steps is not None and self.counts.env_steps >= limits.steps:
            raise CutReached("steps", limit_reason(limits.steps, "env step"))
        if not warm_up and self.rounds == limits.rounds:
            raise CutReached("rounds", limit_reason(self.rounds, "round"))
        if warm_up or self._cuts_in_rounds:
            self._cut_if_asked()

    def _cut_if_asked(self) -> None:
        """What the clock or somebody outside wants."""
        if self._asked is not None:
            raise CutReached(*self._asked)
        if self.site.last_fired_s >= self._deadline_s:
            raise CutReached("time", f"{self.limits.time_s:g} s were asked for")

    # what nodes tell

    def recorded(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        super().recorded(instance, source, record)
        self.irregularities.pass_on(self.sink, source, record)


def states_of(instance: Instance) -> dict[str, State]:
    """The newest version of a runner's states, by `node.port`."""
    ports = instance.spec.cls.ports.items()
    names = [name for name, port in ports if isinstance(port, StateOut)]
    return {f"{instance.key}.{name}": StateVersions(instance, name).newest() for name in names}
