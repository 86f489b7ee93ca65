"""The steps of a schedule, and the sequence of actions that belong to one firing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowrl.core.state import EMPTY_CLOCK
from flowrl.runtime.instance import Instance
from flowrl.runtime.streams import Push, Token

if TYPE_CHECKING:
    from flowrl.runtime.scheduler import Scheduler

Fire = Callable[[], None]

FIRED: Token = (True, EMPTY_CLOCK)  # notifies another site of one firing


@dataclass(slots=True)
class RemoteInstance:
    """Stands in for an instance on another site that paces a schedule of this site. Only its firings are counted."""

    fired: int = 0


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """The firings of one instance in a schedule."""

    order_index: int  # the node's index in the order of the schedule
    replica: int
    fire: Fire
    times: int
    instance: Instance | RemoteInstance


@dataclass(frozen=True, slots=True)
class RoundStop:
    """The place where a round ends early: after this number of firings of an instance."""

    order_index: int
    replica: int
    firings: int

    def firings_of(self, step: ScheduleStep) -> int:
        """Return how often a step's instance fires in the round."""
        own, last = (step.order_index, step.replica), (self.order_index, self.replica)
        if own == last:
            return self.firings
        return step.times if own < last else 0


class FiringSequence:
    """One firing of an instance, and the actions that belong to it.

    | phase | what happens | which instances |
    |---|---|---|
    | 1. check | the sequence ends if the inputs are not ready | nodes that may lack tokens |
    | 2. fire | `Instance.fire`, or a `FailureGuard` around it | all |
    | 3. notify | sites that cannot count the firings are notified | nodes that may lack tokens and pace other sites |
    | 4. send | the version is sent to the sites where it paces a schedule | nodes whose states pace other sites |
    | 5. pace | the schedules that the version paces fire | nodes whose states pace schedules of this site |
    | 6. iterate | `Scheduler.after_iteration`: the position of most cuts | learners |

    Phases 3 to 6 belong to replica 0. A node without a rate repeats all phases as long as its inputs are ready.
    Notifications and versions are sent before this site fires what they pace: otherwise it could wait there for a site
    that waits for them.
    """

    def __init__(
        self,
        instance: Instance,
        fire: Fire,
        scheduler: Scheduler,
        *,
        may_lack_tokens: bool,
        has_no_rate: bool,
        firing_readers: list[Push],
        paced_readers: list[tuple[int, Fire]],
        paced: PacedSteps | None,
    ) -> None:
        self._instance, self._fire, self._scheduler = instance, fire, scheduler
        self._may_lack_tokens, self._has_no_rate = may_lack_tokens, has_no_rate
        is_first = instance.ctx.replica == 0
        self._firing_readers = firing_readers if is_first else []
        self._paced_readers = paced_readers if is_first else []
        self._paced = paced if is_first else None
        self._is_iteration = is_first and instance.is_learner

    @property
    def is_plain(self) -> bool:
        """Whether the sequence consists of the firing alone, so that `Instance.fire` can be called directly."""
        return not (
            self._may_lack_tokens
            or self._firing_readers
            or self._paced_readers
            or self._paced
            or self._is_iteration
        )

    def run(self) -> None:
        if self._has_no_rate:
            while self._instance.is_ready():
                self._run_phases()
                self._scheduler.after_firing()
        elif not self._may_lack_tokens or self._instance.is_ready():
            self._run_phases()

    def _run_phases(self) -> None:
        self._fire()
        for notify in self._firing_readers:
            notify(FIRED)
        if self._paced_readers:
            self._send_version()
        if self._paced is not None:
            self._fire_paced(self._paced)
        if self._is_iteration:
            self._scheduler.after_iteration(self._instance)

    def _send_version(self) -> None:
        instance, site = self._instance, self._scheduler.site
        prefix = site.position_prefix
        site.position_prefix = (*prefix, instance.order_index, 0, instance.fired - 1, 0)
        for every, send in self._paced_readers:
            if instance.fired % every == 0:
                send()
        site.position_prefix = prefix

    def _fire_paced(self, paced: PacedSteps) -> None:
        version = self._instance.fired
        if self._may_lack_tokens:
            self._scheduler.run_unsynchronised(lambda: paced.fire_after(version))
        else:
            paced.fire_after(version)


class RemoteFiringSequence:
    """Fires the schedules that a node on another site paces on this one, at that node's place in the order."""

    def __init__(
        self,
        instance: RemoteInstance,
        paced: PacedSteps,
        scheduler: Scheduler,
        has_fired: Callable[[], bool] | None,
    ) -> None:
        """`has_fired` takes one notification of a firing; None if the schedule says how often the node fires."""
        self._instance, self._paced, self._scheduler = instance, paced, scheduler
        self._has_fired = has_fired

    def run(self) -> None:
        if self._has_fired is None:
            self._fire_once()
        else:
            while self._has_fired():
                self._scheduler.run_unsynchronised(self._fire_once)

    def _fire_once(self) -> None:
        self._instance.fired += 1
        self._paced.fire_after(self._instance.fired)


class PacedSteps:
    """The steps of the schedules on this site that the states of one node pace."""

    def __init__(
        self,
        order_index: int,
        schedules: list[tuple[int, int, list[ScheduleStep]]],
        scheduler: Scheduler,
    ) -> None:
        """`order_index` is the pacing node's. A schedule is a tuple of its number in the program, pace and steps."""
        self._order_index, self._schedules, self._scheduler = order_index, schedules, scheduler

    def fire_after(self, version: int) -> None:
        """Fire the schedules that this version paces."""
        scheduler, site = self._scheduler, self._scheduler.site
        prefix, pacing_step = site.position_prefix, site.current_step
        for number, every, steps in self._schedules:
            if version % every == 0:
                site.position_prefix = (*prefix, self._order_index, 0, version - 1, 1 + number)
                for step in steps:
                    scheduler.fire_step(step, step.times)
        site.position_prefix, site.current_step = prefix, pacing_step
