"""One of several sites: executes the program for its instances, as far as the coordinator's leases allow."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

from flowrl.channels import ChannelError, SiteChannels
from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens
from flowrl.core.context import DeferredEffect, Record, VerdictRecord
from flowrl.core.errors import NodeError
from flowrl.core.state import Count, State
from flowrl.graph.site_layout import COORDINATOR, SiteLayout
from flowrl.machine.numerics import reset_numerics
from flowrl.runtime.control.cuts import CutPlanner, firings_before, includes, schedule_of_round
from flowrl.runtime.control.messages import (
    CONTROL_LIMITS,
    FAILURE,
    FAILURES,
    ConnectionFailure,
    Failure,
    NodeFailure,
    PositionedRecord,
    SiteAtCut,
    SiteClosed,
    SiteFailure,
    SiteReady,
    SiteResults,
    TrainItersReached,
)
from flowrl.runtime.control.site_control import CoordinatorMessages, SiteReporter
from flowrl.runtime.control.weight_history import WeightHistory
from flowrl.runtime.firing_sequence import Fire, RoundStop
from flowrl.runtime.instance import Instance
from flowrl.runtime.interruptions import ChannelFailure, FiringAbandoned, SiteStopped
from flowrl.runtime.records import FailureRecord, RecordSource
from flowrl.runtime.remote.edge_factory import SiteEdgeFactory
from flowrl.runtime.remote.errors import describe_error
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.site_state import Position

FLUSH_S = 0.0005  # tokens of shorter firings are sent together
FAILURE_S = 5.0  # in which the coordinator takes the report of a failure


class SiteScheduler(Scheduler):
    """The scheduler of one of several sites.

    It begins no round without a lease, fires nothing beyond a cut that it knows, and reports counts, records and status
    to the coordinator. A *free* site fires whenever it has tokens, needs no lease after the warm-up, and ends when the
    coordinator halts it.
    """

    def __init__(
        self,
        checked: CheckedGraph,
        seed: int,
        edges: SiteEdgeFactory,
        messages: CoordinatorMessages,
        reporter: SiteReporter,
        channels: SiteChannels,
    ) -> None:
        super().__init__(checked, seed, edges)
        self.name = edges.name
        self._site_edges, self._waits = edges, edges.waits
        self._messages, self._reporter, self._channels = messages, reporter, channels
        self._is_free = edges.is_free
        self._is_executing = False
        self._final_rounds = 0  # before which no cut falls
        self._unsynchronised_depth = (
            0  # of nested schedules that are paced by a node that may lack tokens
        )
        self._has_abandoned = (
            False  # such a schedule was left, maybe in the middle of a firing: none fires again
        )
        self._last_flush_s = 0.0
        self._had_long_firing = False  # in this round
        learners = [r for r in self.instances.all() if r.is_learner]
        self._histories = [WeightHistory(checked, self.instances, learner) for learner in learners]
        # what a free site has fired counts as a whole: it needs no earlier versions
        self._kept_histories = [] if self._is_free else self._histories
        self._paced_histories = [h for h in self._kept_histories if not h.fires_in_rounds]
        cuts = CutPlanner(checked, checked.graph.limits)
        self._learner_may_lack, self._warm_up_rounds = cuts.learner_rate_unknown, cuts.warm_rounds
        # hooks
        for instance in self.instances.all():
            if instance.role == "collector" or instance.key == self.first_learner:
                instance.on_count = self._on_count
        messages.on_settled = self._on_final_rounds
        messages.on_hash_tokens = lambda: self.hash_tokens(reporter.add_hash)
        self._waits.check = self._check_cut

    # messages of the coordinator

    def _on_final_rounds(self, rounds: int, fired: int) -> None:
        """No cut falls before `rounds`, and before `fired` only after versions that pace."""
        self._final_rounds = rounds
        for history in self._kept_histories:
            history.settle(rounds, fired)

    def _check_cut(self) -> None:
        """Raise if this site must not wait: beyond the cut, tokens may never come. A call that it answers goes on."""
        if not self._is_executing or self._waits.is_serving:
            return
        if self._is_halted:
            raise SiteStopped
        stop = self._messages.cut
        if stop is None or self._fires_freely:
            return
        if not includes(stop, self.current_position):
            raise SiteStopped
        if self._unsynchronised_depth:
            raise FiringAbandoned

    def _check_cut_while_waiting(self) -> None:
        """Check again when a message comes during a wait. A firing that does not wait is not left: it may have pushed
        some of its tokens, and must push all."""
        if self.site.waiting is not None:
            self._check_cut()

    @property
    def _is_halted(self) -> bool:
        return self._is_free and self._messages.is_halted

    @property
    def _fires_freely(self) -> bool:
        """Whether the site's rounds are its own. The warm-up has the same rounds on all sites."""
        return self._is_free and self.site.rounds >= self._warm_up_rounds

    # hooks of the scheduler

    def before_round(self) -> RoundStop | None:
        """Wait for a lease, and look whether the cut is in this round."""
        self._channels.drain()
        self._commit_final_effects()
        if self._fires_freely:
            self._wait_for_tokens()
            return None
        rounds = self.site.rounds
        if not self._may_begin_round():
            self._reporter.report_if_new(self)
            self._waits.until_coordinator(self._may_begin_round)
        stop = self._messages.cut
        if stop is None or rounds < stop[0]:
            return None
        if rounds > stop[0]:
            raise SiteStopped
        return self._round_stop(stop) if len(stop) > 1 else None

    def _may_begin_round(self) -> bool:
        rounds, stop = self.site.rounds, self._messages.cut
        return rounds < self._messages.granted_rounds or (stop is not None and rounds > stop[0])

    def _wait_for_tokens(self) -> None:
        """A free site begins no round in which nothing can fire."""
        order, by_node = self.program.round.order, self.instances.by_node
        instances = [instance for name in order for instance in by_node.get(name, ())]

        def can_fire() -> bool:
            edges = self._site_edges
            return edges.has_remote_firings or any(r.is_ready() for r in instances)

        if not can_fire():
            self._reporter.report_if_new(self)
            self._site_edges.wait_for_tokens(can_fire)

    def _commit_final_effects(self) -> None:
        if self.deferred_effects:
            self.deferred_effects.commit(
                lambda position: self._is_free or position[0] < self._final_rounds
            )

    def _round_stop(self, stop: Position) -> RoundStop | None:
        """Where this round ends, given the position of the cut. A node that may lack tokens is not held back."""
        rounds, order_index, replica, firing = stop[:4]
        schedule = schedule_of_round(self.program, rounds)
        name = schedule.order[order_index]
        lacking = name in may_lack_tokens(schedule)
        before = 0 if lacking else firings_before(self.program, rounds, name)
        return RoundStop(order_index, replica, firing + 1 - before)

    def after_firing(self) -> None:
        if self._is_halted:
            raise SiteStopped
        for history in self._paced_histories:
            history.after_firing()
        self._stop_at_verdict()
        # tokens must not wait for the end of a long firing that follows
        if self.site.last_fired_s - self._last_flush_s > FLUSH_S:
            self._last_flush_s = self.site.last_fired_s
            self._had_long_firing = True
            self._channels.flush()

    def after_iteration(self, learner: Instance) -> None:
        for history in self._kept_histories:
            if history.learner is learner:
                history.after_iteration()
        self._stop_at_verdict()
        is_first = self._learner_may_lack and learner.key == self.first_learner
        if is_first and learner.fired == self.graph.limits.train_iters:
            position = (*self.site.position_prefix, learner.order_index, 0, learner.fired - 1)
            self._reporter.report(self)
            self._reporter.send(TrainItersReached(position, learner.fired))
            raise SiteStopped

    def _stop_at_verdict(self) -> None:
        """The cut is at this verdict, or earlier. A free site goes on until it is halted: others may wait for it."""
        if self._verdict is not None and self.has_verdict and not self._fires_freely:
            raise SiteStopped

    def after_round(self, warm_up: bool) -> None:
        self._commit_final_effects()
        for history in self._kept_histories:
            history.after_round()
        if self._had_long_firing:
            # the versions with which the round ended must not wait for the firings of the next one
            self._had_long_firing = False
            self._channels.flush()
        self._reporter.report_periodically(self)
        stop = self._messages.cut
        if stop is not None and self.site.rounds > stop[0] and not self._fires_freely:
            raise SiteStopped

    def end_without_rounds(self) -> None:
        raise SiteStopped

    def run_unsynchronised(self, fire: Fire) -> None:
        """Abandon what is paced if a site on which it depends has stopped; then nothing of the kind fires again.

        A site learns of the pacing firings by notifications, in any round: it may have stopped before one of them.
        """
        if self._has_abandoned:
            return
        prefix, step = self.site.position_prefix, self.current_step
        self._unsynchronised_depth += 1
        try:
            fire()
        except FiringAbandoned:
            self.site.position_prefix, self.current_step = prefix, step
            self._has_abandoned = True
        finally:
            self._unsynchronised_depth -= 1

    def _on_count(self, instance: Instance, count: Count) -> None:
        self._reporter.add_count(instance.position, count)

    def on_record(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        assert not isinstance(record, DeferredEffect)  # the scheduler defers them
        self._reporter.add_record(PositionedRecord(instance.position, source, record))
        if isinstance(record, VerdictRecord):
            self._reporter.report(self)

    # the life of a site

    def live(self) -> None:
        """Execute the program until the site is stopped, and report its states at the cut."""
        self._reporter.send(SiteReady(sum(h.state_bytes for h in self._kept_histories)))
        self._is_executing = True
        self._channels.on_receive(self._check_cut_while_waiting)
        try:
            self.site.last_fired_s = time.perf_counter()
            self._waits.until_coordinator(self._may_begin_round)  # once all sites are ready
            self._site_edges.send_initial_versions()
            self.execute()
        except SiteStopped:
            if self._messages.must_leave:
                return
        self._is_executing = False
        if self._is_free:
            self._site_edges.discard_inputs()
        self._reporter.report(self)
        self._reporter.send(SiteAtCut())
        self._report_states()

    def _report_states(self) -> None:
        """Report the states once all sites know the cut, and end."""
        wait, messages, send = self._waits.until_coordinator, self._messages, self._reporter.send
        try:
            wait(lambda: messages.results_requested, "stopped")
            assert messages.cut is not None
            cut = messages.cut
            self.deferred_effects.commit(lambda position: self._is_free or includes(cut, position))
            self._reporter.report(
                self
            )  # again: services have answered calls since this site stopped
            lines = tuple(self._site_edges.irregularity_lines())
            send(SiteResults(self._states_at(cut), self.instances.dropped(), lines))
            self.close()
            send(SiteClosed(tuple(str(error) for error in self.instances.close_errors)))
            wait(lambda: messages.must_leave, "stopped")
        except SiteStopped:
            return

    def _states_at(self, cut: Position) -> dict[str, State]:
        """The learners' states at the cut; those of a free site are the newest."""
        if self._is_free:
            return {key: s for history in self._histories for key, s in history.states().items()}
        return {key: s for history in self._histories for key, s in history.at(cut).items()}


def run_site(
    checked: CheckedGraph,
    layout: SiteLayout,
    name: str,
    channels: SiteChannels,
    seed: int,
    made: Callable[[SiteScheduler], None] = lambda scheduler: None,
) -> None:
    """Run one site from its making to its end. Failures are reported to the coordinator.

    `made` is called with the scheduler, for whoever shows the status of the site.
    """
    scheduler: SiteScheduler | None = None
    try:
        reset_numerics(checked.graph.torch_threads)
        reporter = SiteReporter(channels, name, len(layout.kinds))
        messages = CoordinatorMessages(channels, name)
        edges = SiteEdgeFactory(checked, layout, name, channels)
        scheduler = SiteScheduler(checked, seed, edges, messages, reporter, channels)
        made(scheduler)
        reset_numerics(checked.graph.torch_threads)
        scheduler.live()
    except SiteStopped:
        pass
    except (ChannelFailure, ChannelError) as error:
        _report_failure(channels, name, ConnectionFailure(str(error), traceback.format_exc()))
    except NodeError as error:
        _report_failure(channels, name, NodeFailure(describe_error(error)))
    except BaseException as error:
        text = f"{type(error).__name__}: {error}"
        _report_failure(channels, name, SiteFailure(text, traceback.format_exc()))
    finally:
        if scheduler is not None:
            scheduler.close()
        channels.close(drop=True)  # the coordinator has acknowledged all that it needs


def _report_failure(channels: SiteChannels, name: str, failure: Failure) -> None:
    """Report a failure on a channel of its own: the reporter's may be full, or not open yet."""
    sender = channels.open_sender(f"{FAILURES}:{name}", COORDINATOR, limits=CONTROL_LIMITS)
    try:
        sender.send(FAILURE.encode(failure))
        channels.flush()
        channels.wait_until(lambda: sender.all_taken, (sender,), FAILURE_S)
    except (ChannelError, SiteStopped):
        return  # the coordinator is gone, or sees that this site has ended
