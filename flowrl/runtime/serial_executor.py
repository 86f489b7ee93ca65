"""Executes the serial program of a graph on one site.

The site fires the whole program in its own order. So it fires nothing beyond the cut, and has nothing to discard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from flowrl.checks.check import CheckedGraph
from flowrl.core.errors import NodeError
from flowrl.core.records import Record
from flowrl.core.state import Count, State
from flowrl.graph.model import Limits
from flowrl.graph.places import MAIN
from flowrl.runtime.copies_ahead import CopiesAhead, is_large, read_large
from flowrl.runtime.edge_factory import EdgeFactory
from flowrl.runtime.executor import Cut, CutReason, Reason, limit_reached, weights_digest
from flowrl.runtime.failed_firing import keep_failed_firing
from flowrl.runtime.instance import Instance
from flowrl.runtime.records import FailureRecord, Irregularities, RecordSink, RecordSource
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.snapshot import collect_parts, save_parts
from flowrl.runtime.snapshot_schedule import Snapshot, SnapshotSink
from flowrl.runtime.status import NodeStats, SiteStatus, in_graph_order
from flowrl.runtime.status_reader import read_status
from flowrl.runtime.stored_pieces import PiecesAhead, StoredPieces
from flowrl.runtime.token_summary import PeekRequest, TokenSummary


class CutReached(Exception):
    """Leaves the program at the cut. It is only raised between firings."""

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
        on_making: Callable[[str], None] = lambda instance: None,
        continues: bool = False,
    ) -> None:
        self.seed = checked.graph.seed if seed is None else seed
        super().__init__(checked, self.seed, EdgeFactory(checked), on_making, continues)
        self.sink, self.irregularities = sink, Irregularities()
        self.limits = limits or checked.graph.limits
        self.began_s: float | None = None
        self.ended_s: float | None = None
        self.summaries: dict[int, TokenSummary] = {}
        self.snapshots: SnapshotSink | None = None
        self._stored_pieces = StoredPieces()
        self._has_large_buffers = any(map(is_large, checked.facts.values()))
        self._copies_ahead = CopiesAhead(
            self._stored_pieces, partial(read_large, self.instances), self._write_ahead
        )
        self._requested_cut: CutReason | None = None
        self._deadline_s = float("inf")
        self._learners = self._with_role("learner")
        self._collectors = self._with_role("collector")

    def _with_role(self, role: str) -> list[Instance]:
        names = self.graph.nodes_of_role(role)
        by_node = self.instances.by_node
        return [instance for name in names for instance in by_node[name] if not instance.follows]

    # the methods of `Executor`

    def run(self) -> Cut:
        """Execute the program up to the cut. The nodes stay open until `close`."""
        self.began_s = self.site.last_fired_s = time.perf_counter()
        if self.limits.time_s is not None:
            self._deadline_s = self.began_s + self.limits.time_s
        try:
            self.execute()
        except CutReached as cut:
            self.ended_s = time.perf_counter()
            self._report_at_cut()
            self.irregularities.dropped = self.instances.dropped_tokens()
            return Cut(cut.reason, cut.why, self.rounds, self.counts)
        except NodeError as error:
            keep_failed_firing(error, self.instances)
            raise
        raise AssertionError("the program ended without a cut")

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        self._requested_cut = (reason, why)

    def continue_from(self, snapshot: Snapshot) -> None:
        self.begin_after(snapshot.rounds, snapshot.parts)

    def peek(self, request: PeekRequest) -> None:
        self.instances.peek(request, lambda found: self.summaries.update({found.number: found}))

    @property
    def counts(self) -> Count:
        return Count(
            sum(collector.counts.env_steps for collector in self._collectors),
            sum(collector.counts.episodes for collector in self._collectors),
            self._learners[0].fired if self._learners else 0,
        )

    def weights(self) -> dict[str, State]:
        states_of = self.instances.states_of
        return {key: s for learner in self._learners for key, s in states_of(learner).items()}

    def digest(self) -> str:
        return weights_digest(self.weights())

    def node_stats(self) -> list[NodeStats]:
        return in_graph_order(self._status().nodes, self.graph.nodes)

    def site_statuses(self) -> list[SiteStatus]:
        return [self._status()]

    def _status(self) -> SiteStatus:
        return read_status(self, MAIN, self.ended_s)

    def idle_s(self) -> dict[str, float]:
        return {}  # one site needs no lease

    def irregularity_lines(self) -> list[str]:
        return [*self.irregularities.lines(), *map(str, self.instances.close_errors)]

    def warnings(self) -> list[str]:
        return []  # one site has no connections

    # hooks of the scheduler

    def before_first_round(self) -> None:
        if self.graph.snapshots.is_regular:  # a state that cannot be saved is an error now
            collect_parts(self.instances)
        limits, counts = self.limits, self.counts  # a run may continue where it had reached a limit
        if limits.train_iters is not None and counts.train_iters >= limits.train_iters:
            raise CutReached(*limit_reached("train_iters", limits.train_iters))
        if self.rounds and limits.steps is not None and counts.env_steps >= limits.steps:
            raise CutReached(*limit_reached("steps", limits.steps))
        if limits.rounds is not None and self.rounds >= limits.rounds:
            raise CutReached(*limit_reached("rounds", limits.rounds))

    def before_round(self) -> None:
        return None

    def after_firing(self) -> None:
        if self.deferred_effects:
            self.deferred_effects.commit()
        if self._copies_ahead.is_active:
            self._note_stored()
            self._copies_ahead.proceed()
        if self._verdict is not None and self.has_verdict:
            raise CutReached("verdict", self._verdict.reason)

    def after_iteration(self, learner: Instance) -> None:
        self.after_firing()
        if learner is not self._learners[0]:
            return
        if learner.fired == self.limits.train_iters:
            raise CutReached(*limit_reached("train_iters", learner.fired))

    def after_round(self, warm_up: bool) -> None:
        limits = self.limits
        self.cut_reports.settle(lambda position: True)
        is_requested = self._is_cut_requested()
        if self.snapshots is not None:
            self._save_snapshot(self.snapshots, is_requested)
        if not warm_up and limits.steps is not None and self.counts.env_steps >= limits.steps:
            raise CutReached(*limit_reached("steps", limits.steps))
        if not warm_up and self.rounds == limits.rounds:
            raise CutReached(*limit_reached("rounds", self.rounds))
        if is_requested:
            self._cut_on_request()

    def end_without_rounds(self) -> None:
        raise CutReached("done", "no node fires in rounds")

    def on_record(
        self, instance: Instance, source: RecordSource, record: Record | FailureRecord
    ) -> None:
        self.irregularities.pass_on(self.sink, source, record)

    def _report_at_cut(self) -> None:
        for instance in self.instances.all():
            for _, source, record in self.cut_reports.make(instance, lambda position: True):
                self.irregularities.pass_on(self.sink, source, record)

    def _is_cut_requested(self) -> bool:
        """Whether `stop` was called, or the time limit is reached."""
        return self._requested_cut is not None or self.site.last_fired_s >= self._deadline_s

    def _cut_on_request(self) -> None:
        if self._requested_cut is not None:
            raise CutReached(*self._requested_cut)
        assert self.limits.time_s is not None
        raise CutReached(*limit_reached("time", self.limits.time_s))

    def _save_snapshot(self, sink: SnapshotSink, is_requested: bool) -> None:
        """Save a snapshot if one is due after this round, or if the run ends with it on request."""
        schedule, ahead, rounds = sink.schedule, self._copies_ahead, self.site.rounds
        is_ready = is_requested or not self._has_large_buffers
        if is_requested:
            schedule.request()
        elif not is_ready:
            if ahead.has_failed:
                schedule.postpone()
                ahead.end()
            elif schedule.wants_copies_ahead(rounds):
                ahead.begin()
            is_ready = ahead.is_done
        if schedule.due_within(rounds, rounds, is_ready):
            self._note_stored()
            ahead.end()
            try:
                parts = save_parts(self.instances, rounds, self._stored_pieces)
            except NodeError as error:
                sink.fail(str(error))
            else:
                sink.write(Snapshot(rounds, self.counts, sink.mark(), parts))

    def _write_ahead(self, pieces: PiecesAhead) -> None:
        assert self.snapshots is not None
        self.snapshots.write_ahead(pieces)

    def _note_stored(self) -> None:
        for stored in () if self.snapshots is None else self.snapshots.take_stored():
            if isinstance(stored.copy, PiecesAhead):
                self._copies_ahead.on_stored(stored.hashes)
            elif stored.hashes is not None:
                self._stored_pieces.set_stored(stored.copy, stored.hashes)
