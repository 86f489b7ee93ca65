"""The scheduler of one of several sites."""

from __future__ import annotations

import time

from flowrl.channels import SiteChannels
from flowrl.checks.check import CheckedGraph
from flowrl.checks.firing_counts import firings_before, schedule_of_round
from flowrl.checks.lossy_edges import may_lack_tokens
from flowrl.core.records import CutReport, DeferredEffect, Record, VerdictRecord
from flowrl.core.state import Count
from flowrl.runtime.control.cuts import CutPlanner, completed_at, includes
from flowrl.runtime.control.messages import (
    JoinRun,
    MakingNode,
    PartsLoaded,
    PeerReplaced,
    PositionedRecord,
    ReplacePeer,
    RoundsHeld,
    SiteAtCut,
    SiteClosed,
    SiteReady,
    SiteResults,
    TrainItersReached,
)
from flowrl.runtime.control.site_control import CoordinatorMessages, SiteReporter
from flowrl.runtime.control.weight_history import WeightHistories
from flowrl.runtime.firing_sequence import Fire, RoundStop
from flowrl.runtime.instance import Instance
from flowrl.runtime.interruptions import FiringAbandoned, SiteStopped
from flowrl.runtime.records import FailureRecord, RecordSource
from flowrl.runtime.remote.edge_factory import SiteEdgeFactory
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.site_state import Position
from flowrl.runtime.sites.site_snapshots import SiteSnapshots
from flowrl.runtime.snapshot import collect_parts

FLUSH_S = 0.0005  # tokens of shorter firings are sent together


class SiteScheduler(Scheduler):
    """The scheduler of one of several sites.

    It begins rounds as far as the coordinator's leases allow, fires nothing beyond a cut that it knows, and reports
    counts, records and its status to the coordinator. A *free* site fires whenever it has tokens, needs no lease after
    the warm-up, and ends when the coordinator halts it.
    """

    def __init__(
        self,
        checked: CheckedGraph,
        seed: int,
        edges: SiteEdgeFactory,
        messages: CoordinatorMessages,
        reporter: SiteReporter,
        channels: SiteChannels,
        continues: bool = False,
    ) -> None:
        def report_making(instance: str) -> None:
            reporter.send(MakingNode(instance))

        super().__init__(checked, seed, edges, report_making, continues)
        self.name = edges.name
        self._site_edges, self._waits = edges, edges.waits
        self._messages, self._reporter, self._channels = messages, reporter, channels
        self._is_free = edges.is_free
        self._is_executing = False
        self._settled_rounds = 0  # no cut falls before this round
        # The nesting of schedules that are paced by nodes that may lack tokens.
        self._unsynchronised_depth = 0
        # Whether such a schedule was left, perhaps in the middle of a firing. Then none of them fires again.
        self._has_abandoned = False
        self._last_flush_s = 0.0
        self._had_long_firing = False  # in the current round
        self._snapshots = SiteSnapshots(
            self, edges, messages, reporter, channels, lambda: self._fires_freely
        )
        cuts = CutPlanner(checked, checked.graph.limits)
        self._histories = WeightHistories(
            checked, self.instances, cuts.may_cut_past_rounds, self._is_free
        )
        self._learner_rate_unknown = cuts.learner_rate_unknown
        # hooks
        for instance in self.instances.all():
            if instance.role == "collector" or instance.key == self.graph.first_learner:
                instance.on_count = self._on_count
        messages.on_settled = self._on_settled
        messages.on_hold = lambda: reporter.answer(RoundsHeld(self.site.position_prefix[0] + 1))
        messages.on_replace_peer = self._replace_peer
        messages.on_peek = lambda request: self.instances.peek(request, reporter.add_summary)
        messages.on_hash_tokens = lambda command: self.hash_tokens(
            reporter.add_hash, command.recorded
        )
        self._waits.check = self._check_cut

    # messages of the coordinator

    def _replace_peer(self, command: ReplacePeer) -> None:
        peer, epoch = command.peer, command.epoch
        lost_tokens = self._site_edges.replace_peer(peer, command.address, epoch)
        self._reporter.answer(PeerReplaced(peer, epoch, lost_tokens))

    def _on_settled(self, rounds: int, paced_rounds: int) -> None:
        self._settled_rounds = rounds
        self._histories.settle(rounds, paced_rounds)

    def _check_cut(self) -> None:
        """Raise an exception if a wait is beyond the cut, where tokens may never arrive. Answering a call goes on."""
        if not self._is_executing or self._waits.is_serving:
            return
        if self._is_halted:
            raise SiteStopped
        cut = self._messages.cut
        if cut is None or self._fires_freely:
            return
        if not includes(cut, self.site.position) or self._snapshots.is_saving_beyond(cut):
            raise SiteStopped
        if self._unsynchronised_depth:
            raise FiringAbandoned

    def _check_cut_while_waiting(self) -> None:
        """Check again when messages arrive during a wait.

        A firing that does not wait is not interrupted: it may have pushed some of its tokens, and must push all.
        """
        if self.site.waiting is not None:
            self._check_cut()

    @property
    def _is_halted(self) -> bool:
        return self._is_free and self._messages.is_halted

    @property
    def _fires_freely(self) -> bool:
        """Whether the site fires independently of the rounds of others. In the warm-up no site does."""
        return self._is_free and self.site.rounds >= self.warm_up_rounds

    # hooks of the scheduler

    def before_first_round(self) -> None:
        """Send the first versions. In a run that continues, wait until all sites have loaded their parts."""
        if self._messages.parts_to_load is not None:
            self._messages.parts_to_load = None
            self._site_edges.continue_after(self.site.rounds)
            self._histories.begin_anew()
            self._reporter.send(PartsLoaded())
            self._waits.until_coordinator(self._may_begin_round)
        self._site_edges.send_initial_versions()
        if self.graph.snapshots.is_regular:  # a state that cannot be saved is an error now
            collect_parts(self.instances)

    def before_round(self) -> RoundStop | None:
        """Wait for a lease, and return where the round ends early if the cut is in it."""
        self._channels.drain()
        self._commit_settled_effects()
        self._snapshots.act()
        if self._fires_freely:
            self._wait_for_tokens()
            return None
        rounds = self.site.rounds
        while not self._may_begin_round():
            self._reporter.report_if_new(self)
            self._waits.until_coordinator(
                lambda: self._may_begin_round() or self._snapshots.shall_act
            )
            self._snapshots.act()
        self._snapshots.save_if_due()  # a request that came after the last round
        cut = self._messages.cut
        if cut is None or rounds < cut[0]:
            return None
        if rounds > cut[0]:
            raise SiteStopped
        return self._round_stop(cut) if len(cut) > 1 else None

    def _may_begin_round(self) -> bool:
        rounds, cut = self.site.rounds, self._messages.cut
        if cut is not None and rounds > cut[0]:
            return True
        return rounds < self._messages.granted_rounds and not self._messages.is_held

    # waiting for tokens

    def _wait_for_tokens(self) -> None:
        """Wait until an instance of this free site can fire."""
        order, by_node = self.program.round.order, self.instances.by_node
        instances = [instance for name in order for instance in by_node.get(name, ())]

        def can_fire() -> bool:
            edges = self._site_edges
            return edges.has_remote_firings or any(instance.is_ready() for instance in instances)

        while not can_fire():
            self._reporter.report_if_new(self)
            self._site_edges.wait_for_tokens(lambda: can_fire() or self._snapshots.shall_act)
            self._snapshots.act()

    def _commit_settled_effects(self) -> None:
        if self.deferred_effects:
            self.deferred_effects.commit(
                lambda position: self._is_free or position[0] < self._settled_rounds
            )
        self.cut_reports.settle(
            lambda position: self._is_free or position[0] < self._settled_rounds
        )
        self._snapshots.send_settled(self._settled_rounds)

    def _round_stop(self, cut: Position) -> RoundStop | None:
        """Return where the round of the cut ends. The firings of a node that may lack tokens are not limited."""
        round_number, order_index, replica, firing = cut[:4]
        schedule = schedule_of_round(self.program, round_number)
        name = schedule.order[order_index]
        is_unlimited = name in may_lack_tokens(schedule)
        before = 0 if is_unlimited else firings_before(self.program, round_number, name)
        return RoundStop(order_index, replica, firing + 1 - before)

    def after_firing(self) -> None:
        if self._is_halted:
            raise SiteStopped
        self._histories.after_firing()
        self._stop_at_verdict()
        if self._snapshots.shall_copy_ahead:
            self._snapshots.copy_ahead()
        # Tokens must not wait for the end of a long firing that follows.
        if self.site.last_fired_s - self._last_flush_s > FLUSH_S:
            self._last_flush_s = self.site.last_fired_s
            self._had_long_firing = True
            self._channels.flush()

    def after_iteration(self, learner: Instance) -> None:
        self._histories.after_iteration(learner)
        self._stop_at_verdict()
        is_first = self._learner_rate_unknown and learner.key == self.graph.first_learner
        if is_first and learner.fired == self.graph.limits.train_iters:
            position = (*self.site.position_prefix, learner.order_index, 0, learner.fired - 1)
            self._reporter.report(self)
            self._reporter.send(TrainItersReached(position, learner.fired))
            raise SiteStopped

    def _stop_at_verdict(self) -> None:
        """Stop at a verdict, because the cut is not later. A free site goes on, because others may wait for it."""
        if self._verdict is not None and self.has_verdict and not self._fires_freely:
            raise SiteStopped

    def after_round(self, warm_up: bool) -> None:
        self._snapshots.save_if_due()
        self._commit_settled_effects()
        self._histories.after_round()
        if self._had_long_firing:
            # The versions with which the round ended must not wait for the firings of the next one.
            self._had_long_firing = False
            self._channels.flush()
        self._reporter.report_periodically(self)
        cut = self._messages.cut
        if cut is not None and self.site.rounds > cut[0] and not self._fires_freely:
            raise SiteStopped

    def end_without_rounds(self) -> None:
        raise SiteStopped

    def run_unsynchronised(self, fire: Fire) -> None:
        """Fire a paced schedule, or abandon it if a site on which it depends has stopped. Then none fires again.

        Sites learn of the pacing firings by notifications, in any round. So a site may have stopped before one of them.
        """
        if self._has_abandoned:
            return
        prefix, step = self.site.position_prefix, self.site.current_step
        self._unsynchronised_depth += 1
        try:
            fire()
        except FiringAbandoned:
            self.site.position_prefix, self.site.current_step = prefix, step
            self._has_abandoned = True
        finally:
            self._unsynchronised_depth -= 1

    def _on_count(self, instance: Instance, count: Count) -> None:
        self._reporter.add_count(instance.position, count)

    def on_record(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        assert not isinstance(record, DeferredEffect | CutReport)  # which the scheduler keeps
        self._reporter.add_record(PositionedRecord(instance.position, source, record))
        if isinstance(record, VerdictRecord):
            self._reporter.report(self)

    # the life of a site

    def live(self) -> None:
        """Execute the program until the site is stopped, and report its states at the cut."""
        self._reporter.send(SiteReady(self._histories.state_bytes))
        self._is_executing = True
        self._channels.on_receive(self._check_cut_while_waiting)
        try:
            self.site.last_fired_s = time.perf_counter()
            self._wait_until_all_sites_are_ready()
            self.execute()
        except SiteStopped:
            if self._messages.must_leave:
                return
        self._is_executing = False
        if self._is_free:
            self._site_edges.keep_inputs()
        self._reporter.report(self)
        self._reporter.send(SiteAtCut())
        self._report_states()

    def _wait_until_all_sites_are_ready(self) -> None:
        messages = self._messages
        if self.site.restarts:
            self._waits.until_coordinator(lambda: messages.run_to_join is not None)
            assert messages.run_to_join is not None
            self._join_run(messages.run_to_join)
            return
        self._waits.until_coordinator(
            lambda: messages.parts_to_load is not None or self._may_begin_round()
        )
        if messages.parts_to_load is not None:
            load = messages.parts_to_load
            # An elastic site that has saved nothing begins anew.
            parts = messages.arrived_arrays.decode_parts(load.parts)
            self.begin_after(load.rounds, parts or None, load.fired)

    def _join_run(self, join: JoinRun) -> None:
        """Begin where the others are, and go on counting where the instances of the lost site had been."""
        self.begin_after(join.rounds)
        for instance in self.instances.all():
            fired, counts = join.progress.get(instance.key, (0, Count()))
            instance.fired, instance.counts = fired, counts
            instance.ctx.clock = instance.ctx.clock.add(instance.key, *counts)

    def _report_states(self) -> None:
        """Report the learners' states once all sites know the cut, and close the nodes."""
        wait, messages, send = self._waits.until_coordinator, self._messages, self._reporter.send
        try:
            wait(lambda: messages.results_requested or self._snapshots.shall_stand_still, "stopped")
            self._snapshots.stand_still_if_asked("stopped")
            wait(lambda: messages.results_requested, "stopped")
            assert messages.cut is not None
            cut = messages.cut
            self.deferred_effects.commit(lambda position: self._is_free or includes(cut, position))
            rounds = completed_at(cut)
            self._snapshots.save_at_end(rounds)
            self._snapshots.send_settled(rounds)
            # Services may have answered calls since the last report.
            self._reporter.report(self)
            lines = tuple(self._site_edges.irregularity_lines())
            refusals = tuple(self._channels.connections.refusal_lines())
            dropped = self.instances.dropped_tokens()
            reports = self._reports_at(cut)
            send(SiteResults(self._histories.states_at(cut), reports, dropped, lines, refusals))
            self.close()
            send(SiteClosed(tuple(str(error) for error in self.instances.close_errors)))
            wait(lambda: messages.must_leave, "stopped")
        except SiteStopped:
            return

    def _reports_at(self, cut: Position) -> tuple[PositionedRecord, ...]:
        """Return what the nodes of this site report at the cut."""
        return tuple(
            PositionedRecord(position, source, record)
            for instance in self.instances.all()
            for position, source, record in self.cut_reports.make(
                instance, lambda position: self._is_free or includes(cut, position)
            )
        )
