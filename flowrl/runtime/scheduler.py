"""A walk through the serial program: fires, in its order, the instances that live here.

Where all instances live here, that is the whole program. Elsewhere it is the program's projection: what other sites
fire is left out, and queues that wait for them take its place. What fires after a node that lives elsewhere fires at
that node's place in the order.
"""

from __future__ import annotations

from itertools import repeat

from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import fires_without_rate, may_lack_tokens
from flowrl.checks.serial_program import Schedule, WarmUpSchedule
from flowrl.core.context import DeferredEffect, Record, VerdictRecord
from flowrl.core.errors import NodeError
from flowrl.runtime.deferred_effects import DeferredEffects
from flowrl.runtime.edge_factory import EdgeFactory
from flowrl.runtime.failure_guard import FailureGuard, FailureRecord
from flowrl.runtime.firing_sequence import (
    Fire,
    PacedSteps,
    RemoteFirings,
    RoundStop,
    ScheduleStep,
    as_often_as,
    firings_until,
    heard_by,
    if_ready,
    while_ready,
)
from flowrl.runtime.instance import RAISED, Instance, Position
from flowrl.runtime.instances import make_instances
from flowrl.runtime.records import RecordSource
from flowrl.runtime.token_hashing import Note, TokenHasher


class Scheduler:
    """Fires the instances here, round by round; who derives from it says when that ends."""

    def __init__(self, checked: CheckedGraph, seed: int, home: EdgeFactory | None = None) -> None:
        self.checked = checked.require_sound()
        self.graph, self.program = checked.graph, checked.program
        self.rounds = 0  # whole rounds so far, without those of the warm-up
        self.instances = make_instances(checked, seed, home)
        self.site = self.instances.site
        self._sources: dict[str, RemoteFirings] = {}
        self._step: ScheduleStep | None = None  # whose turn it is
        self._verdict: VerdictRecord | None = None  # that of the earliest cut
        self._verdict_depth = -1  # a verdict includes what its firing paces
        self.deferred_effects = DeferredEffects()
        for instance in self.instances.all():
            instance.on_record = self._on_record

    def hash_tokens(self, note: Note) -> None:
        """Note every token that is given, and every version that is seen, from the first firing on."""
        self.instances.hasher = TokenHasher(self.graph, note)
        self.instances.connect(
            [self.program.round, *(paced.schedule for paced in self.program.paced)]
        )

    # what happens between firings: for those who derive

    def before_round(self) -> RoundStop | None:
        """A round begins; where to leave it, if not at its end."""
        return None

    def after_round(self, warm_up: bool) -> None:
        """A round has ended."""

    def after_firing(self) -> None:
        """One instance has fired."""

    def after_iteration(self, learner: Instance) -> None:
        """A learner has fired, and what its version paces (of several replicas: the first)."""

    def _on_record(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        if isinstance(record, DeferredEffect):
            self.deferred_effects.add(self.position(instance), instance, record)
        else:
            self.recorded(instance, source, record)

    def recorded(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        """A node told something in a firing, or a service called in it; or it failed."""
        depth = len(
            self.site.position_prefix
        )  # what a firing paces may give a verdict before the firing's own
        if isinstance(record, VerdictRecord) and depth > self._verdict_depth:
            self._verdict, self._verdict_depth = record, depth

    def at_leisure(self, fire: Fire) -> Fire:
        """What a node paces that fires when it can: sites may hear of that firing in different rounds."""
        return fire

    def no_rounds(self) -> None:
        """The warm-up was all there is to do."""

    # where

    def position(self, instance: Instance) -> Position:
        """Where in the program a runner's firing is: positions compare as the program orders them."""
        return (
            *self.site.position_prefix,
            instance.order_index,
            instance.ctx.replica,
            instance.fired,
        )

    def current_position(self) -> Position:
        """The position of the firing that goes on, or comes next."""
        step = self._step
        return (
            (*self.site.position_prefix, step.order_index, step.replica, step.who.fired)
            if step
            else self.site.position_prefix
        )

    @property
    def current_step(self) -> ScheduleStep | None:
        """Whose turn it is (of a paced part: there)."""
        return self._step

    @property
    def has_verdict(self) -> bool:
        """Whether a verdict was given, and all that its firing paces has fired."""
        return self._verdict is not None and len(self.site.position_prefix) <= self._verdict_depth

    def close(self) -> None:
        """Close all nodes once; what they raise is kept in `instances.close_errors`."""
        self.instances.close()

    # the program

    def execute(self) -> None:
        """Fire on and on; ends by what the hooks raise."""
        self._warm_up()
        schedule = self.program.round
        steps = self._steps(schedule)
        if not schedule.order:
            self.no_rounds()
        while True:
            self.site.round = self.rounds
            self._round(steps)
            self.rounds += 1
            self.after_round(warm_up=False)

    def _warm_up(self) -> None:
        site = self.site
        for number, warm in enumerate(self.program.warmup, 1):
            site.phase = f"warm-up {number}, "
            self.instances.connect([warm.schedule])
            self._set(warm)
            steps = self._steps(warm.schedule)
            for number_of_round in range(warm.rounds):
                site.round = number_of_round
                self._round(steps)
                self.after_round(warm_up=True)
            self._set(warm, back=True)
        site.phase = ""
        if self.program.warmup:
            self.instances.connect([self.program.round])

    def _set(self, warm: WarmUpSchedule, back: bool = False) -> None:
        """Set what differs in a phase, or set it back to what the graph says."""
        for name, values in warm.phase.settings.items():
            usual = {key: getattr(self.graph.nodes[name].config, key) for key in values}
            for instance in self.instances.by_node.get(name, ()):
                try:
                    instance.node.reconfigure(**(usual if back else values))
                except RAISED as error:
                    doing = f"taking the settings {', '.join(values)}"
                    raise NodeError(instance.key, doing, error) from error

    def _round(self, steps: list[ScheduleStep]) -> None:
        """All firings of one round, or those up to where it is left."""
        until = self.before_round()
        self.site.position_prefix = (self.site.rounds,)
        for step in steps:
            self._fire(step, firings_until(step, until))
        self._step = None
        for versions in self.instances.versions.values():
            versions.end_round()
        self.site.rounds += 1

    def _fire(self, step: ScheduleStep, times: int) -> None:
        fire = step.fire
        self._step = step
        for _ in repeat(None, times):
            fire()
            self.after_firing()

    # a part as steps

    def _steps(self, schedule: Schedule) -> list[ScheduleStep]:
        hungry, often = may_lack_tokens(schedule), fires_without_rate(schedule)
        steps = []
        for order_index, name in enumerate(schedule.order):
            times = schedule.firings[name]
            paced = [] if self.instances.home.has(name, 0) else self._paced(name)
            if paced:
                source = self._sources.setdefault(name, RemoteFirings())
                shadow = self._shadow(source, order_index, paced)
                if name in hungry:
                    shadow = self.at_leisure(shadow)
                    shadow = as_often_as(self.instances.home.firings(name), shadow)
                steps.append(ScheduleStep(order_index, 0, shadow, times, source))
            for instance in self.instances.by_node.get(name, ()):
                instance.order_index = order_index
                fire = self._fire_of(instance, order_index, name in hungry, name in often)
                steps.append(ScheduleStep(order_index, instance.ctx.replica, fire, times, instance))
        return steps

    def _fire_of(self, instance: Instance, order_index: int, starves: bool, often: bool) -> Fire:
        """One firing with all that belongs to it, and no more than that."""
        fire = instance.fire
        name = instance.spec.name
        if instance.spec.on_failure != "stop":
            fire = FailureGuard(instance, self.instances.renew).fire
        if instance.ctx.replica == 0:
            paced = self._paced(name)
            if heard := self.instances.home.told_firings(name):
                fire = heard_by(heard, fire)
            told = [
                t
                for v in self.instances.versions.values()
                if v.instance is instance
                for t in v.paced
            ]
            if told:
                fire = self._telling(instance, fire, told)
            if paced:
                fire = self._with_paced(instance, fire, order_index, paced, starves)
            if instance.learns:
                fire = self._with_iteration(instance, fire)
        if starves:
            fire = if_ready(instance, fire)
        return while_ready(instance, fire, self.after_firing) if often else fire

    @property
    def first_learner(self) -> str | None:
        """The learner whose firings are the run's train iterations."""
        return next(iter(self.graph.nodes_of_role("learner")), None)

    def _paced(self, name: str) -> list[PacedSteps]:
        """What a node's versions pace here: its number, its pace, its steps."""
        found = []
        for number, paced in enumerate(self.program.paced):
            if paced.source.node == name:
                steps = self._steps(paced.schedule)
                if steps:
                    found.append((number, paced.every, steps))
        return found

    def _with_paced(
        self,
        instance: Instance,
        fire: Fire,
        order_index: int,
        paced: list[PacedSteps],
        starves: bool,
    ) -> Fire:
        """A paced part fires right after the version that it sees."""

        def pace() -> None:
            self._fire_paced(instance.fired, order_index, paced)

        after = self.at_leisure(pace) if starves else pace

        def fire_with_paced() -> None:
            fire()
            after()

        return fire_with_paced

    def _shadow(self, source: RemoteFirings, order_index: int, paced: list[PacedSteps]) -> Fire:
        """In the place of a node that fires elsewhere: what it paces here."""

        def fire_paced() -> None:
            source.fired += 1
            self._fire_paced(source.fired, order_index, paced)

        return fire_paced

    def _fire_paced(self, fired: int, order_index: int, paced: list[PacedSteps]) -> None:
        site = self.site
        at, pacing = site.position_prefix, self._step
        for number, every, steps in paced:
            if fired % every == 0:
                site.position_prefix = (*at, order_index, 0, fired - 1, 1 + number)
                for step in steps:
                    self._fire(step, step.times)
        site.position_prefix, self._step = at, pacing

    def _telling(self, instance: Instance, fire: Fire, told: list[tuple[int, Fire]]) -> Fire:
        """Sites elsewhere are sent the versions that pace what lives there."""

        site = self.site

        def fire_and_tell() -> None:
            fire()
            at = site.position_prefix
            site.position_prefix = (
                *at,
                instance.order_index,
                0,
                instance.fired - 1,
                0,
            )  # this belongs to the firing
            for every, tell in told:
                if instance.fired % every == 0:
                    tell()
            site.position_prefix = at

        return fire_and_tell

    def _with_iteration(self, learner: Instance, fire: Fire) -> Fire:
        """After a train iteration, and what it paces, is where most cuts fall."""

        def fire_iteration() -> None:
            fire()
            self.after_iteration(learner)

        return fire_iteration
