"""Executes the serial program of a graph on one site.

The site fires the whole program in its own order. So nothing beyond the cut is fired, and nothing has to be discarded.
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
from flowrl.runtime.edge_factory import LocalEdgeFactory
from flowrl.runtime.executor import Cut, InstanceTimes, Reason, weights_digest
from flowrl.runtime.instance import Instance
from flowrl.runtime.records import FailureRecord, Irregularities, RecordSink, RecordSource
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.state_versions import StateVersions
from flowrl.runtime.status import AgedStatus, read_status


class CutReached(Exception):
    """Leaves the program at the cut. Only raised between firings."""

    def __init__(self, reason: Reason, why: str) -> None:
        self.reason, self.why = reason, why
        super().__init__(why)


class SerialExecutor(Scheduler):
    """The `Executor` of a graph whose nodes all live on one site."""

    def __init__(
        self,
        checked: CheckedGraph,
        sink: RecordSink,
        seed: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.seed = checked.graph.seed if seed is None else seed
        super().__init__(checked, self.seed, LocalEdgeFactory(checked))
        self.sink, self.irregularities = sink, Irregularities()
        self.limits = limits or checked.graph.limits
        self.began_s: float | None = None
        self.ended_s: float | None = None
        self._requested_cut: tuple[Reason, str] | None = None
        self._deadline_s = float("inf")
        self._learners = self._with_role("learner")
        self._collectors = self._with_role("collector")
        schedule = self.program.round
        learns = self.first_learner in schedule.order and not may_lack_tokens(schedule)
        # cuts on request fall after a train iteration, where --train-iters repeats them; without any, after a round
        self._cuts_after_rounds = not learns

    def _with_role(self, role: str) -> list[Instance]:
        return [r for name in self.graph.nodes_of_role(role) for r in self.instances.by_node[name]]

    # see `Executor`

    def run(self) -> Cut:
        """Execute the program up to the cut. The nodes stay open, to be looked at."""
        self.began_s = self.site.last_fired_s = time.perf_counter()
        if self.limits.time_s is not None:
            self._deadline_s = self.began_s + self.limits.time_s
        try:
            self.execute()
        except CutReached as cut:
            self.ended_s = time.perf_counter()
            self.irregularities.dropped = self.instances.dropped()
            return Cut(cut.reason, cut.why, self.rounds, self.counts)
        raise AssertionError("the program ended without a cut")

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        self._requested_cut = (reason, why)

    @property
    def counts(self) -> Count:
        return Count(
            sum(collector.counts.env_steps for collector in self._collectors),
            sum(collector.counts.episodes for collector in self._collectors),
            self._learners[0].fired if self._learners else 0,
        )

    def weights(self) -> dict[str, State]:
        return {k: s for learner in self._learners for k, s in _states_of(learner).items()}

    def digest(self) -> str:
        return weights_digest(self.weights())

    def instance_times(self) -> list[InstanceTimes]:
        return [InstanceTimes(r.key, r.fired, r.busy_s) for r in self.instances.all()]

    def site_statuses(self) -> dict[str, AgedStatus | None]:
        return {MAIN: AgedStatus(read_status(self))}

    def idle_s(self) -> dict[str, float]:
        return {}  # one site needs no lease

    def irregularity_lines(self) -> list[str]:
        return [*self.irregularities.lines(), *map(str, self.instances.close_errors)]

    # hooks of the scheduler

    def before_round(self) -> None:
        return None

    def after_firing(self) -> None:
        if self.deferred_effects:
            self.deferred_effects.commit()
        if self._verdict is not None and self.has_verdict:
            raise CutReached("verdict", self._verdict.reason)

    def after_iteration(self, learner: Instance) -> None:
        self.after_firing()
        if learner is not self._learners[0]:
            return
        if learner.fired == self.limits.train_iters:
            raise CutReached("train_iters", limit_reason(learner.fired, "train iteration"))
        self._cut_on_request()

    def after_round(self, warm_up: bool) -> None:
        limits = self.limits
        if not warm_up and limits.steps is not None and self.counts.env_steps >= limits.steps:
            raise CutReached("steps", limit_reason(limits.steps, "env step"))
        if not warm_up and self.rounds == limits.rounds:
            raise CutReached("rounds", limit_reason(self.rounds, "round"))
        if warm_up or self._cuts_after_rounds:
            self._cut_on_request()

    def end_without_rounds(self) -> None:
        raise CutReached("done", "no node fires in rounds")

    def on_record(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        self.irregularities.pass_on(self.sink, source, record)

    def _cut_on_request(self) -> None:
        """Cut if `stop` was called, or if the time limit is reached."""
        if self._requested_cut is not None:
            raise CutReached(*self._requested_cut)
        if self.site.last_fired_s >= self._deadline_s:
            raise CutReached("time", f"{self.limits.time_s:g} s were asked for")


def _states_of(instance: Instance) -> dict[str, State]:
    """The newest version of an instance's states, by `node.port`."""
    ports = instance.spec.cls.ports.items()
    names = [name for name, port in ports if isinstance(port, StateOut)]
    return {f"{instance.key}.{name}": StateVersions(instance, name).newest() for name in names}
