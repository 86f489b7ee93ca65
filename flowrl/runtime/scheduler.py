"""Executes the serial program of a graph for the instances of one site.

On a single site this is the whole program. On one of several sites it is a projection: firings of other sites are left
out, and inputs wait for the tokens of those firings. A schedule of this site that a node on another site paces fires at
that node's place in the order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate, repeat
from typing import NamedTuple

from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import firings_before
from flowrl.checks.lossy_edges import fires_without_rate, may_lack_tokens
from flowrl.checks.serial_program import Schedule, WarmUpSchedule
from flowrl.core.errors import NodeError
from flowrl.core.records import CutReport, DeferredEffect, Record, VerdictRecord
from flowrl.runtime.cut_reports import CutReports
from flowrl.runtime.deferred_effects import DeferredEffects
from flowrl.runtime.edge_factory import EdgeFactory
from flowrl.runtime.failure_guard import FailureGuard
from flowrl.runtime.firing_sequence import (
    Fire,
    FiringSequence,
    PacedSteps,
    RemoteFiringSequence,
    RemoteInstance,
    RoundStop,
    ScheduleStep,
)
from flowrl.runtime.instance import RAISED, Instance
from flowrl.runtime.instances import Instances
from flowrl.runtime.records import FailureRecord, RecordSource
from flowrl.runtime.snapshot import Parts, load_parts
from flowrl.runtime.token_hashing import TokenHasher, TokenHashSink


class RemainingPhase(NamedTuple):
    """A phase of the warm-up that is not over."""

    number: int  # from 1
    warm_up: WarmUpSchedule
    end: int  # the completed rounds, of all phases, at its end


class Scheduler(ABC):
    """Fires the instances of one site, round by round, until a hook raises an exception."""

    def __init__(
        self,
        checked: CheckedGraph,
        seed: int,
        edges: EdgeFactory,
        on_making: Callable[[str], None] = lambda instance: None,
        continues: bool = False,
    ) -> None:
        """Make the instances. `on_making` is called with each one before it is made.

        A run that `continues` loads the parts of a snapshot before the first firing.
        """
        self.checked = checked.require_sound()
        self.graph, self.program = checked.graph, checked.program
        self.warm_up_rounds = sum(warm.rounds for warm in self.program.warmup)
        self.instances = Instances(checked, seed, edges, on_making, continues)
        self.site = edges.site
        self.deferred_effects = DeferredEffects()
        self.cut_reports = CutReports()
        self._edges = edges
        self._saved_parts: Parts | None = None  # of the snapshot from which a run continues
        self._saved_fired: Mapping[str, int] = {}
        self._remote_instances: dict[str, RemoteInstance] = {}
        self._verdict: VerdictRecord | None = None  # the verdict with the earliest cut
        # The length of its position's prefix. The cut includes the steps that its firing paces.
        self._verdict_depth = -1
        for instance in self.instances.all():
            instance.on_record = self._on_record

    # hooks

    @abstractmethod
    def before_first_round(self) -> None:
        """Called when the instances have all that they need to fire. May wait or raise."""

    @abstractmethod
    def before_round(self) -> RoundStop | None:
        """Prepare a round, and return where it ends early, if it does. May wait or raise."""

    @abstractmethod
    def after_firing(self) -> None:
        """Called after each firing and all firings that it paces. May raise."""

    @abstractmethod
    def after_iteration(self, learner: Instance) -> None:
        """Called before `after_firing` for replica 0 of a learner. May raise."""

    @abstractmethod
    def after_round(self, warm_up: bool) -> None:
        """Called after each round of the warm-up or of the program. May raise."""

    @abstractmethod
    def end_without_rounds(self) -> None:
        """Raise an exception: no node fires in rounds, so the program ends with the warm-up."""

    @abstractmethod
    def on_record(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        """Take a record of an instance's firing, or of a service that was called in it."""

    def run_unsynchronised(self, fire: Fire) -> None:
        """Fire a schedule that is paced by a node that may lack tokens.

        Sites learn of such a node's firings in different rounds.
        """
        fire()

    # the state of the execution

    @property
    def has_verdict(self) -> bool:
        """Whether a node has given a verdict, and all firings that its firing paces are over."""
        return self._verdict is not None and len(self.site.position_prefix) <= self._verdict_depth

    def hash_tokens(self, sink: TokenHashSink, recorded: Collection[str] = ()) -> None:
        """Pass the hash of each token that is pushed, and of each version that is read, to `sink`.

        If inputs are `recorded`, only their hashes are passed, with the tokens.
        """
        self.instances.hash_tokens(TokenHasher(self.graph, sink, recorded))

    def close(self) -> None:
        """Close all nodes. Errors are kept in `instances.close_errors`."""
        self.instances.close()

    def _on_record(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        if isinstance(record, DeferredEffect):
            self.deferred_effects.add(instance, record)
            return
        if isinstance(record, CutReport):
            self.cut_reports.add(instance, source, record)
            return
        # A node that a firing paces may give a verdict before the firing's own is recorded.
        depth = len(self.site.position_prefix)
        if isinstance(record, VerdictRecord) and depth > self._verdict_depth:
            self._verdict, self._verdict_depth = record, depth
        self.on_record(instance, source, record)

    # the program

    def begin_after(
        self, rounds: int, parts: Parts | None = None, fired: Mapping[str, int] | None = None
    ) -> None:
        """Let `execute` begin after these rounds, in which the instances had what the parts say.

        `fired` is how often nodes of other sites had fired whose firings do not follow from the rounds.
        """
        self._saved_parts, self._saved_fired = parts, fired or {}
        self.site.rounds, self.site.position_prefix = rounds, (rounds,)

    def execute(self) -> None:
        """Execute the warm-up, and then rounds until a hook raises an exception."""
        self._forget_making_time()
        phases = self._remaining_phases()
        steps = self._enter_phase(phases)
        self._load_saved_parts()
        self.before_first_round()
        while phases:
            phase = phases[0]
            while self.site.rounds < phase.end:
                self.site.round = self.site.rounds - (phase.end - phase.warm_up.rounds)
                self._run_round(steps)
                if self.site.rounds == phase.end:
                    self._apply_settings(phase.warm_up, restore=True)
                    steps = self._enter_phase(phases[1:])
                self.after_round(warm_up=True)
            del phases[0]
        if not self.program.round.order:
            self.end_without_rounds()
        while True:
            self.site.round = self.rounds
            self._run_round(steps)
            self.after_round(warm_up=False)

    @property
    def rounds(self) -> int:
        """The number of completed rounds, without those of the warm-up."""
        return max(self.site.rounds - self.warm_up_rounds, 0)

    def _load_saved_parts(self) -> None:
        if self._saved_parts is None:
            return
        load_parts(self.instances, self._saved_parts)
        self._saved_parts = None
        for instance in self.instances.all():
            self.cut_reports.add_loaded(instance)
        for name, remote in self._remote_instances.items():
            before = firings_before(self.program, self.site.rounds, name)
            remote.fired = self._saved_fired.get(name, before)

    def _forget_making_time(self) -> None:
        """Forget the time of calls and parts while nodes were made, which belongs to no firing."""
        for calls in self.site.service_calls.values():
            calls.reset()
        for instance in self.instances.all():
            instance.ctx.parts_s.update(dict.fromkeys(instance.ctx.parts_s, 0.0))

    def _remaining_phases(self) -> list[RemainingPhase]:
        """Return the phases of the warm-up that are not over."""
        phases = self.program.warmup
        ends = accumulate(warm.rounds for warm in phases)
        found = [
            RemainingPhase(n, w, e) for n, (w, e) in enumerate(zip(phases, ends, strict=True), 1)
        ]
        return [phase for phase in found if phase.end > self.site.rounds]

    def _enter_phase(self, phases: Sequence[RemainingPhase]) -> list[ScheduleStep]:
        """Connect the instances for the first of these phases, or for the rounds after them; return its steps."""
        if phases:
            self.site.phase = f"warm-up {phases[0].number}, "
            schedule: Schedule = phases[0].warm_up.schedule
            self.instances.connect([schedule])
            self._apply_settings(phases[0].warm_up)
        else:
            self.site.phase, schedule = "", self.program.round
            if self.program.warmup:
                self.instances.connect([schedule])
        return self._steps(schedule)

    def _apply_settings(self, warm: WarmUpSchedule, restore: bool = False) -> None:
        """Apply the settings of a phase, or restore the settings of the graph."""
        for name, values in warm.phase.settings.items():
            usual = {key: getattr(self.graph.nodes[name].config, key) for key in values}
            for instance in self.instances.by_node.get(name, ()):
                try:
                    instance.node.reconfigure(**(usual if restore else values))
                except RAISED as error:
                    doing = f"taking the settings {', '.join(values)}"
                    raise NodeError(instance.key, doing, error) from error

    def _run_round(self, steps: list[ScheduleStep]) -> None:
        stop = self.before_round()
        self.site.position_prefix = (self.site.rounds,)
        for step in steps:
            self.fire_step(step, step.times if stop is None else stop.firings_of(step))
        self.site.current_step = None
        for versions in self.instances.versions.values():
            versions.end_round()
        self.site.rounds += 1

    def fire_step(self, step: ScheduleStep, times: int) -> None:
        """Fire a step's instance `times` times, and call `after_firing` after each firing."""
        fire = step.fire
        self.site.current_step = step
        for _ in repeat(None, times):
            fire()
            self.after_firing()

    # the steps of a schedule

    def _steps(self, schedule: Schedule) -> list[ScheduleStep]:
        """Return the steps of a schedule on this site, in order."""
        may_lack, without_rate = may_lack_tokens(schedule), fires_without_rate(schedule)
        steps = []
        for index, name in enumerate(schedule.order):
            times = schedule.firings[name]
            paced = self._paced_steps(name, index)
            if name in self.instances.groups:
                steps.append(self._group_step(name, index, times, paced))
                continue
            if paced is not None and not self._edges.is_local(name, 0):
                remote = self._remote_instance(name)
                has_fired = self._edges.remote_firings(name) if name in may_lack else None
                sequence = RemoteFiringSequence(remote, paced, self, has_fired)
                steps.append(ScheduleStep(index, 0, sequence.run, times, remote))
            for instance in self.instances.by_node.get(name, ()):
                instance.order_index = index
                fire = self._guarded_fire(instance)
                fire = self._fire_of(instance, fire, paced, name in may_lack, name in without_rate)
                steps.append(ScheduleStep(index, instance.ctx.replica, fire, times, instance))
        return steps

    def _group_step(
        self, name: str, index: int, times: int, paced: PacedSteps | None
    ) -> ScheduleStep:
        """Return the step of a group. Its replicas on this site fire together, at the position of replica 0.

        Where replica 0 lives on another site, what its states pace on this site fires after each firing of the group:
        replica 0 cannot fire again before.
        """
        group = self.instances.groups[name]
        first = group.instances[0]
        for instance in group.instances:
            instance.order_index = index
        if self._edges.is_local(name, 0):
            fire = self._fire_of(first, group.fire, paced, may_lack=False, has_no_rate=False)
        elif paced is None:
            fire = group.fire
        else:
            sequence = RemoteFiringSequence(self._remote_instance(name), paced, self, None)

            def fire() -> None:
                group.fire()
                sequence.run()

        return ScheduleStep(index, 0, fire, times, first)

    def _remote_instance(self, name: str) -> RemoteInstance:
        if name not in self._remote_instances:  # a continued run may have left its warm-up
            fired = firings_before(self.program, self.site.rounds, name)
            self._remote_instances[name] = RemoteInstance(fired)
        return self._remote_instances[name]

    def _guarded_fire(self, instance: Instance) -> Fire:
        if instance.spec.on_failure == "stop":
            return instance.fire
        return FailureGuard(instance, self.instances.recreate_node).fire

    def _fire_of(
        self,
        instance: Instance,
        fire: Fire,
        paced: PacedSteps | None,
        may_lack: bool,
        has_no_rate: bool,
    ) -> Fire:
        """Return the function that fires an instance: `FiringSequence.run`, or `fire` itself if that is enough."""
        versions = self.instances.versions.values()
        sequence = FiringSequence(
            instance,
            fire,
            self,
            may_lack_tokens=may_lack,
            has_no_rate=has_no_rate,
            firing_readers=self._edges.firing_readers(instance.spec.name),
            paced_readers=[r for v in versions if v.instance is instance for r in v.paced_readers],
            paced=paced,
        )
        return fire if sequence.is_plain else sequence.run

    def _paced_steps(self, name: str, order_index: int) -> PacedSteps | None:
        """Return the steps that the states of a node pace on this site, if any."""
        schedules = []
        for number, paced in enumerate(self.program.paced):
            if paced.source.node == name:
                steps = self._steps(paced.schedule)
                if steps:
                    schedules.append((number, paced.every, steps))
        return PacedSteps(order_index, schedules, self) if schedules else None
