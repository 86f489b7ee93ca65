"""A site: walks through the program for the instances that live there, as far as the coordinator grants."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

from flowrl.channels import ChannelError, SiteChannels
from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens
from flowrl.core.context import Record, VerdictRecord
from flowrl.core.errors import NodeError
from flowrl.core.state import Count, State
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.numerics import reset_numerics
from flowrl.runtime.control.cuts import CutPlanner, firings_before, includes, part_in
from flowrl.runtime.control.free_sites import free_sites
from flowrl.runtime.control.messages import FAILED, PositionedRecord, error_words
from flowrl.runtime.control.orders import CONTROL, AbandonFiring, CoordinatorMessages, SiteStopped
from flowrl.runtime.control.reports import SiteReporter
from flowrl.runtime.control.weight_history import WeightHistory
from flowrl.runtime.failure_guard import FailureRecord
from flowrl.runtime.firing_sequence import Fire, RoundStop
from flowrl.runtime.instance import Instance, Position
from flowrl.runtime.records import RecordSource
from flowrl.runtime.remote.edge_factory import RemoteEdgeFactory
from flowrl.runtime.remote.waiting import ChannelFailure
from flowrl.runtime.scheduler import Scheduler

FLUSH_S = 0.0005  # shorter firings are gathered


class SiteScheduler(Scheduler):
    """Reports what happens, and goes no further than granted, nor beyond where it is told to stop."""

    def __init__(
        self,
        checked: CheckedGraph,
        layout: SiteLayout,
        name: str,
        channels: SiteChannels,
        seed: int,
    ) -> None:
        self.name, self.channels = name, channels
        self._reports = SiteReporter(channels, name, len(layout.kinds))
        self._orders = CoordinatorMessages(channels, name)
        self._settled = 0  # rounds that no cut goes back to
        self._free = name in free_sites(checked, layout)
        self._walking = False
        self._at_leisure = 0  # parts that it is in which a node paces that fires when it can
        self._left = False  # one of them, maybe in the midst of a firing: none fires again
        self._flushed_s = 0.0
        self._long_round = False  # something in it took its time
        self._home = RemoteEdgeFactory(checked, layout, name, channels)
        self._home.waiting.check = self._check
        super().__init__(checked, seed, self._home)
        learners = [r for r in self.instances.all() if r.role == "learner"]
        self._recalls = [WeightHistory(checked, self.instances, learner) for learner in learners]
        # what a free site has done counts whole
        self._keeping = [] if self._free else self._recalls
        cuts = CutPlanner(checked, checked.graph.limits)
        self._starves, self._warm_rounds = cuts.learner_starves, cuts.warm_rounds
        self._paced_learners = [r for r in self._keeping if not r.fires_in_rounds]
        self._orders.on_settled = self._settle
        self._orders.on_hash = lambda: self.hash_tokens(self._reports.hashed.append)
        for instance in self.instances.all():
            if instance.role == "collector" or instance.key == self.first_learner:
                instance.on_count = self._counted

    # what the coordinator says

    def _settle(self, rounds: int, fired: int) -> None:
        """No cut falls before this round, nor in those that have fired but after versions that pace."""
        self._settled = rounds
        for recall in self._keeping:
            recall.settle(rounds, fired)

    def _check(self) -> None:
        """Past the cut, what a site would wait for may never come; unless it answers a call."""
        if not self._walking or self._home.waiting.serves:
            return
        if self._halted:
            raise SiteStopped
        stop = self._orders.stop
        if stop is None or self._fires_freely:
            return
        if not includes(stop, self.current_position()):
            raise SiteStopped
        if self._at_leisure:
            raise AbandonFiring

    def _check_again(self) -> None:
        """The end may come while a site waits. A firing that has given some of its tokens, and does not wait, gives
        the others: what was given must be what was fired."""
        if self.site.waiting is not None:
            self._check()

    @property
    def _halted(self) -> bool:
        """Whether a free site is to end."""
        return self._free and self._orders.halted

    # hooks

    def before_round(self) -> RoundStop | None:
        """Wait for the grant; find out whether this round is the last."""
        self.channels.drain()
        self._do_what_counts()
        if self._fires_freely:
            self._wait_for_tokens()
            return None
        rounds = self.site.rounds
        if not self._may_begin():
            self._reports.tell_rounds(self)
            self._home.waiting.idle(self._may_begin)
        stop = self._orders.stop
        if stop is None or rounds < stop[0]:
            return None
        if rounds > stop[0]:
            raise SiteStopped
        return self._until(stop) if len(stop) > 1 else None

    @property
    def _fires_freely(self) -> bool:
        """Whether its rounds are its own: the phases of a warm-up are those of all."""
        return self._free and self.site.rounds >= self._warm_rounds

    def _wait_for_tokens(self) -> None:
        """A round in which nothing can fire is not begun."""
        by_node = [
            r for name in self.program.round.order for r in self.instances.by_node.get(name, ())
        ]

        def can_fire() -> bool:
            return self._home.heard_of_firings or any(instance.ready() for instance in by_node)

        if not can_fire():
            self._reports.tell_rounds(self)
            self._home.wait_for_tokens(can_fire)

    def _do_what_counts(self) -> None:
        """What nodes do outside of the run, as far as no cut can take it back."""
        if self.deferred_effects:
            self.deferred_effects.do(lambda position: self._free or position[0] < self._settled)

    def _until(self, stop: Position) -> RoundStop | None:
        """Where in this round the cut is; what starves fires in its own time, and is not held."""
        rounds, order_index, replica, firing = stop[:4]
        schedule = part_in(self.program, rounds)
        name = schedule.order[order_index]
        before = (
            0 if name in may_lack_tokens(schedule) else firings_before(self.program, rounds, name)
        )
        return RoundStop(order_index, replica, firing + 1 - before)

    def _may_begin(self) -> bool:
        rounds, stop = self.site.rounds, self._orders.stop
        return rounds < self._orders.granted or (stop is not None and rounds > stop[0])

    def after_round(self, warm_up: bool) -> None:
        self._do_what_counts()
        for recall in self._keeping:
            recall.after_round()
        if self._long_round:
            # the states that it ended with should not wait for the next one's firings
            self._long_round = False
            self.channels.flush()
        self._reports.tell_now_and_then(self)
        stop = self._orders.stop
        if stop is not None and self.site.rounds > stop[0] and not self._fires_freely:
            raise SiteStopped

    def after_firing(self) -> None:
        if self._halted:
            raise SiteStopped
        for recall in self._paced_learners:
            recall.after_firing()
        self._end_at_verdict()
        # what was given should not wait for the next firing, if that is a long one
        if self.site.last_fired_s - self._flushed_s > FLUSH_S:
            self._flushed_s = self.site.last_fired_s
            self._long_round = True
            self.channels.flush()

    def _end_at_verdict(self) -> None:
        """The run is cut here, or earlier; but a free site goes on until it is told: others may wait for it."""
        if self._verdict is not None and self.has_verdict and not self._fires_freely:
            raise SiteStopped

    def after_iteration(self, learner: Instance) -> None:
        for recall in self._keeping:
            if recall.learner is learner:
                recall.after_iteration()
        self._end_at_verdict()
        first = self._starves and learner.key == self.first_learner
        if first and learner.fired == self.graph.limits.train_iters:
            at = (*self.site.position_prefix, learner.order_index, 0, learner.fired - 1)
            self._reports.tell(self)
            self._reports.say("reached", list(at), learner.fired)
            raise SiteStopped

    def at_leisure(self, fire: Fire) -> Fire:
        """No round is agreed on for it: others may have stopped before they heard of what this site fires for."""

        def fire_or_leave() -> None:
            if self._left:
                return
            at, step = self.site.position_prefix, self._step
            self._at_leisure += 1
            try:
                fire()
            except AbandonFiring:
                self.site.position_prefix, self._step, self._left = at, step, True
            finally:
                self._at_leisure -= 1

        return fire_or_leave

    def _counted(self, instance: Instance, count: Count) -> None:
        self._reports.counted(self.position(instance), count)

    def recorded(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        super().recorded(instance, source, record)
        self._reports.recorded(PositionedRecord(self.position(instance), source, record))
        if isinstance(record, VerdictRecord):
            self._reports.tell(self)

    def states_at(self, cut: Position) -> dict[str, State]:
        """The learners' states at the cut."""
        if self._free:
            return {key: s for recall in self._recalls for key, s in recall.states().items()}
        return {key: s for recall in self._recalls for key, s in recall.at(cut).items()}

    # the life of a site

    def live(self) -> None:
        """Walk until told to stop, and say what there is at the cut."""
        self._reports.say("ready", sum(recall.state_bytes for recall in self._keeping))
        self._walking = True
        self.channels.on_receive(self._check_again)
        try:
            self.site.last_fired_s = time.perf_counter()
            self._home.waiting.idle(self._may_begin)  # granted once all are ready
            self._home.begin()
            self.execute()
        except SiteStopped:
            if self._orders.leave:
                return
        self._walking = False
        if self._free:
            self._home.take_no_more()
        self._reports.tell(self)
        self._reports.say("stopped")
        self._tell_states()

    def no_rounds(self) -> None:
        """Nothing fires in rounds: an empty program ends where it begins."""
        raise SiteStopped

    def _tell_states(self) -> None:
        """Once the cut is known to all; then there is nothing more to do."""
        idle, orders, say = self._home.waiting.idle, self._orders, self._reports.say
        try:
            idle(lambda: orders.wants_states, "stopped")
            assert orders.stop is not None
            cut = orders.stop
            self.deferred_effects.do(lambda position: self._free or includes(cut, position))
            # where time went: services have answered calls since they had stopped
            self._reports.tell(self)
            lines = self._home.irregularity_lines()
            say("states", self.states_at(cut), self.instances.dropped(), lines)
            self.close()
            say("closed", [str(error) for error in self.instances.close_errors])
            idle(lambda: orders.leave, "stopped")
        except SiteStopped:
            return


def run_site(
    checked: CheckedGraph,
    layout: SiteLayout,
    name: str,
    channels: SiteChannels,
    seed: int,
    made: Callable[[SiteScheduler], None] = lambda walk: None,
) -> None:
    """One site from its making to its end; what goes wrong is told to the coordinator.

    `made` is called with the site's walk, for whoever looks at it.
    """
    walk: SiteScheduler | None = None
    try:
        reset_numerics(checked.graph.torch_threads)
        walk = SiteScheduler(checked, layout, name, channels, seed)
        made(walk)
        reset_numerics(checked.graph.torch_threads)
        walk.live()
    except SiteStopped:
        pass
    except (ChannelFailure, ChannelError) as error:
        _fail(channels, name, ["lost", str(error), traceback.format_exc()])
    except NodeError as error:
        _fail(channels, name, ["node", *error_words(error)])
    except BaseException as error:
        _fail(channels, name, ["site", f"{type(error).__name__}: {error}", traceback.format_exc()])
    finally:
        if walk is not None:
            walk.close()
        channels.close(drop=True)  # what the coordinator had to know, it has


def _fail(channels: SiteChannels, name: str, words: list[Any]) -> None:
    """Say what went wrong, on a lane of its own: the other may be full, or not be there yet."""
    sender = channels.open_sender(f"{FAILED}:{name}", COORDINATOR, limits=CONTROL)
    try:
        sender.send(words)
        channels.flush()
        channels.wait_until(lambda: sender.all_taken, (sender,), 5.0)
    except (ChannelError, SiteStopped):
        return  # nobody is left to be told; the coordinator sees that this site has ended
