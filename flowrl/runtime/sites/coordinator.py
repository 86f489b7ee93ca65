"""The coordinator: executes a graph on several sites.

It starts the sites, grants them leases, collects their reports, and decides where the run is cut. It sees no tokens.
It passes the sites' records to the run in the serial order (`control.record_reorderer`). `control.messages` lists all
messages between it and the sites.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection

from typing_extensions import assert_never

from flowrl.checks.check import CheckedGraph
from flowrl.checks.site_kinds import elastic_sites, free_sites, paced_sites, rounds_behind
from flowrl.core.context import instance_key
from flowrl.core.records import VerdictRecord
from flowrl.core.state import Count, State
from flowrl.graph.model import Limits
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.control.count_ledger import CountLedger
from flowrl.runtime.control.cuts import CutPlanner, completed_at
from flowrl.runtime.control.leases import Leases
from flowrl.runtime.control.messages import (
    ArrayBytes,
    CopiedAhead,
    CopiedPieces,
    GrantLease,
    HaltFreeSite,
    HashTokens,
    JoinRun,
    MakingNode,
    PartsLoaded,
    PartsNotSaved,
    PeerReplaced,
    PositionedRecord,
    Report,
    RoundsHeld,
    SavedParts,
    SavedPieces,
    SendResults,
    SiteAtCut,
    SiteClosed,
    SiteProgress,
    SiteReady,
    SiteResults,
    SiteTokenHashes,
    StandsStill,
    TrainItersReached,
)
from flowrl.runtime.control.record_reorderer import RecordReorderer
from flowrl.runtime.control.site_control import report_period_s
from flowrl.runtime.disturbances import Disturbance
from flowrl.runtime.executor import Cut, CutReason, Reason, limit_reached, weights_digest
from flowrl.runtime.interruptions import RunInterrupted
from flowrl.runtime.records import RecordSink
from flowrl.runtime.site_state import Position
from flowrl.runtime.sites.launched_sites import LaunchedSites
from flowrl.runtime.sites.milestones import Milestones
from flowrl.runtime.sites.remote_hosts import RemoteHosts
from flowrl.runtime.sites.run_cut import RunCut
from flowrl.runtime.sites.silence_watch import SilenceWatch
from flowrl.runtime.sites.site_failures import SiteLost
from flowrl.runtime.sites.site_restarts import ElasticProgress, SiteRestarts
from flowrl.runtime.sites.site_statuses import SiteStatuses
from flowrl.runtime.sites.snapshot_assembly import SnapshotAssembly
from flowrl.runtime.snapshot_schedule import Snapshot, SnapshotSink
from flowrl.runtime.status import Activity, NodeStats, SiteStatus, in_graph_order
from flowrl.runtime.token_hashing import TokenHashSink
from flowrl.runtime.token_summary import PeekRequest, TokenSummary

START_S = 300.0  # in which every site must be ready: imports and simulators may take long
RESULTS_S = 60.0  # without any report: the parts of a snapshot may take longer to arrive
CLOSE_S = 4.0  # in which nodes should close; the others are named and killed
STUCK_S = 60.0  # without reports, after a cut was requested, before a node counts as hanging


class Coordinator:
    """The `Executor` of a graph on several sites."""

    def __init__(
        self,
        checked: CheckedGraph,
        sink: RecordSink,
        layout: SiteLayout,
        seed: int,
        limits: Limits,
        hosts: RemoteHosts | None = None,
        show: Callable[[str], None] = lambda text: None,
        continues: bool = False,
        restarts_sites: bool = False,
    ) -> None:
        """`show` shows a line to the user. A run that `restarts_sites` goes on while an elastic site is lost."""
        self.checked = checked.require_sound()
        planner = CutPlanner(checked, limits)
        self._warm_up_rounds = planner.warm_up_rounds
        self.sites = LaunchedSites(checked, layout, seed, hosts, continues)
        self.began_s: float | None = None
        self.ended_s: float | None = None
        self._silence = SilenceWatch(self.sites.names_in_other_processes(), show)
        self._statuses = SiteStatuses(self.sites, self._silence.on_sign_of_life)
        self._free_sites = free_sites(checked, layout)
        self._restarts_sites = restarts_sites
        self._elastic_sites = (
            elastic_sites(checked, layout) if restarts_sites else frozenset(layout.later)
        )
        self._restarts = SiteRestarts(self.sites, show)
        self._progress = ElasticProgress(checked.program)
        # By site: the rounds after which it may come back.
        self._rounds_of_lost: dict[str, int] = {}
        paced = paced_sites(checked, layout)
        self._unsynchronised_sites = self._free_sites | paced | layout.relays
        behind = rounds_behind(checked) if paced and not self._free_sites else 0
        names = self.sites.names
        self._leases = Leases(
            names,
            self._free_sites,
            paced,
            behind,
            planner.warm_up_rounds,
            report_period_s(len(layout.kinds)),
        )
        self._ledger = CountLedger()
        self._reorderer = RecordReorderer(sink)
        self._milestones = Milestones(names)
        self._has_halted_free_sites = False
        self._cut = RunCut(
            planner,
            self._leases,
            self._ledger,
            self.sites,
            may_miss_firings=bool(self._elastic_sites),
            before_requested=lambda rounds: self._assembly.save_after([rounds]),
        )
        self.summaries: dict[int, TokenSummary] = {}
        self._assembly = SnapshotAssembly(
            checked,
            layout,
            self.sites,
            self._restarts,
            self._leases,
            self._ledger,
            release_records=lambda rounds: self._reorderer.release_before(
                rounds, self._cut.position
            ),
            settle=lambda: self._settle(self._leases.granted),
        )
        self._continued: Snapshot | None = None
        self._peek_requests: deque[PeekRequest] = deque()
        self._disturbances: deque[Disturbance] = deque()
        self._recorded: tuple[str, ...] = ()  # the inputs whose tokens are recorded
        self._states: dict[str, State] = {}
        self._reports_at_cut: list[PositionedRecord] = []
        self._irregularities: list[str] = []
        self._refusals: list[str] = []  # of the sites
        for site in layout.later:
            self._expect(site, is_there=site not in layout.absent)

    # the methods of `Executor`

    @property
    def snapshots(self) -> SnapshotSink | None:
        return self._assembly.sink

    @snapshots.setter
    def snapshots(self, sink: SnapshotSink | None) -> None:
        self._assembly.sink = sink

    @property
    def counts(self) -> Count:
        cut = self._cut.position
        if cut is None or self._milestones.pending(SiteAtCut):
            return self._ledger.settled
        return self._ledger.counts_at(cut)

    def node_stats(self) -> list[NodeStats]:
        return in_graph_order(self._statuses.node_stats(), self.checked.graph.nodes)

    def site_statuses(self) -> list[SiteStatus]:
        return self._statuses.current()

    def idle_s(self) -> dict[str, float]:
        return self._statuses.idle_s()

    def weights(self) -> dict[str, State]:
        keys = [
            f"{name}#{replica}." if replica else f"{name}."
            for name in self.checked.graph.nodes_of_role("learner")
            for replica in range(self.checked.graph.nodes[name].replicas)
        ]
        return {k: s for key in keys for k, s in self._states.items() if k.startswith(key)}

    def digest(self) -> str:
        return weights_digest(self._states)

    def irregularity_lines(self) -> list[str]:
        happened = [*self._reorderer.irregularities.lines(), *self._irregularities]
        return [*self._restarts.lines(), *happened]

    def warnings(self) -> list[str]:
        return [*self._silence.lines(), *self.sites.refusal_lines(), *self._refusals]

    def hash_tokens(self, sink: TokenHashSink, recorded: Collection[str] = ()) -> None:
        self._reorderer.hash_sink = sink
        self._recorded = tuple(recorded)

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        self._cut.request((reason, why))

    def peek(self, request: PeekRequest) -> None:
        self._peek_requests.append(request)

    def disturb(self, disturbance: Disturbance) -> None:
        """Do something to a site or a host on purpose. Any thread may call this."""
        self._disturbances.append(disturbance)

    def continue_from(self, snapshot: Snapshot) -> None:
        self._continued = snapshot

    def close(self) -> None:
        self.sites.close()

    # the run

    def run(self) -> Cut:
        """Start the sites, and let them fire up to the earliest cut."""
        self.start()
        if self._reorderer.hash_sink is not None:
            self.sites.send(HashTokens(self._recorded))
        self._cut.announce()
        if self._continued is not None:
            self._load_parts(self._continued)
        self._assembly.begin_after(self._leases.granted)  # 0, or where the run continues
        self.began_s = began = time.perf_counter()
        while self._milestones.pending(SiteAtCut):
            self._grant_lease(time.perf_counter() - began)
            self._receive_reports()
            self._assembly.announce_stored()
            self._restart_lost_sites()
            self._require_progress()
            present = set(self.sites.names) - self._restarts.absent
            self._cut.find(time.perf_counter() - began, present)
            self._release_records()
            self._halt_free_sites()
            self._send_peek_requests()
            while self._disturbances:
                self.sites.disturb(self._disturbances.popleft())
        self.ended_s = time.perf_counter()
        cut = self._cut.position
        assert cut is not None
        self._assembly.mark_completed(completed_at(cut))
        if len(cut) == 1:
            self._assembly.save_at_end(completed_at(cut), self._receive_reports)
        self._reorderer.release_before(None, cut)
        self.sites.send(SendResults())
        wait_for, receive = self._milestones.wait_for, self._receive_reports
        wait_for(SiteResults, RESULTS_S, receive, counts_from_report=True)
        self._emit_reports_at_cut()
        self._wait_until_closed()
        rounds = completed_at(cut) - self._warm_up_rounds
        return Cut(*self._cut.why, max(rounds, 0), self.counts)

    def start(self) -> None:
        """Start the sites, and wait until all of them are ready."""
        self.sites.start()
        self._milestones.wait_for(SiteReady, START_S, self._receive_reports_of_start)

    def _receive_reports_of_start(self) -> None:
        self._receive_reports()
        if self._cut.has_request:
            raise RunInterrupted  # no site has fired, so there is nothing to keep

    def _emit_reports_at_cut(self) -> None:
        """Emit what the nodes of all sites report at the cut, in the order of the graph."""
        instances = [
            instance_key(name, replica)
            for name, spec in self.checked.graph.nodes.items()
            for replica in range(spec.replicas)
        ]
        index = {key: number for number, key in enumerate(instances)}
        for report in sorted(self._reports_at_cut, key=lambda report: index[report.source.key]):
            self._reorderer.emit_now(report)

    def _wait_until_closed(self) -> None:
        """Wait until all nodes are closed. A node that does not close is reported, but the run does not fail."""
        try:
            self._milestones.wait_for(SiteClosed, CLOSE_S, self._receive_reports)
        except SiteLost as error:
            self._irregularities.append(str(error))

    def _require_progress(self) -> None:
        """Raise an error if the sites make no progress towards a requested cut, because a node hangs."""
        quiet_s = time.monotonic() - max(self._cut.requested_s, self._milestones.last_report_s)
        if quiet_s > STUCK_S:
            names = self._cut.sites_to_hold or self._milestones.pending(SiteAtCut)
            late = ", ".join(f"'{name}'" for name in sorted(names))
            what = f"site {late} did not reach the cut, and reported nothing for {STUCK_S:g} s"
            raise SiteLost(f"{what}; one of its nodes may hang: see `flowrl why`")

    def _grant_lease(self, firing_s: float) -> None:
        """Let sites begin more rounds, and let learners' sites forget states that no cut can recall."""
        if self._assembly.is_standing_still:
            self._assembly.stand_still()
            return
        leases, before = self._leases, self._leases.granted
        granted = leases.grant(firing_s)
        if granted is not None:
            self._assembly.save_within(before + 1, granted)
            self._settle(granted)

    def _settle(self, granted: int) -> None:
        """Tell sites up to which round they may go, and before which no cut can fall."""
        rounds = self._cut.settled(self._leases.completed_rounds)
        paced_rounds = self._cut.settled(self._leases.fired_rounds)
        self.sites.send(GrantLease(granted, rounds, paced_rounds))

    def _release_records(self) -> None:
        """Release the records of rounds that all sites have completed, and sum up their counts."""
        completed, cut = self._leases.completed_rounds, self._cut.position
        self._assembly.mark_completed(completed)
        self._reorderer.release_before(completed, cut)
        # The counts of the round of the cut stay apart: `RunCut` asks in which round a limit was reached.
        self._ledger.settle(completed if cut is None else min(completed, cut[0]))

    # elastic sites

    def _restart_lost_sites(self) -> None:
        """Start lost sites again, and let those take part that are ready. Where the run ends, nobody waits for them."""
        is_warm = self._leases.completed_rounds >= self._warm_up_rounds
        if is_warm and self._restarts_sites:  # the phases of the warm-up need all sites
            self.sites.replaceable = self._elastic_sites
        absent = self._restarts.absent
        if not absent:
            return
        at_work = set(self.sites.names) - self._free_sites - absent
        is_ending = bool(at_work) and at_work.isdisjoint(self._milestones.pending(SiteAtCut))
        if is_ending or self._cut.was_requested:
            for site in absent:
                self._leave_out(site)
            return
        if not is_warm:
            return
        self._restarts.start_due()
        if not at_work and self.sites.hosts is not None:
            self._restarts.require_host_within(self.sites.hosts.patience_s)
        for site in self._restarts.take_returning():
            self._let_join(site)

    def _expect(self, site: str, is_there: bool) -> None:
        """Let a site take part that the run can miss, now or when its host joins."""
        self._restarts.expect(site, is_there)
        if not is_there:
            self._silence.ignore(site)
            self._rounds_of_lost[site] = self._leases.remove(site)
            self._milestones.leave_out(site, (SiteReady, PartsLoaded))

    def _lose(self, site: str, why: str) -> None:
        """Go on without a site, until it is started again. At the end of a run it is not."""
        self._silence.ignore(site)
        self._assembly.lose(site)
        if site not in self._rounds_of_lost:
            self._rounds_of_lost[site] = self._leases.remove(site)
        if self._cut.was_requested or site not in self._milestones.pending(SiteAtCut):
            self._restarts.leave_out(site, why)
            self._leave_out(site)
            return
        self._statuses.update_activity(site, Activity("starting"))
        self._restarts.lose(site, why)

    def _leave_out(self, site: str) -> None:
        self._restarts.leave_out(site)
        self._cut.leave_out(site)
        self._milestones.leave_out(site)

    def _let_join(self, site: str) -> None:
        """Let a site that was started again take part from the round on in which the others are."""
        rounds = self._leases.add(site, self._rounds_of_lost.pop(site))
        self._silence.watch(site)
        send_to = self.sites.send_to
        if self._reorderer.hash_sink is not None:
            send_to(site, HashTokens(self._recorded))
        self._cut.announce_to(site)
        send_to(site, JoinRun(rounds, self._progress.of_site(site)))
        self._settle(self._leases.granted)

    def _load_parts(self, snapshot: Snapshot) -> None:
        """Let all sites load their parts of a snapshot, and count from there."""
        self._assembly.send_parts(snapshot)
        self._leases.begin_after(snapshot.rounds)
        self._ledger.settled = snapshot.counts
        self._cut.begin_after(snapshot.rounds)
        self._milestones.wait_for(PartsLoaded, START_S, self._receive_reports)

    def _halt_free_sites(self) -> None:
        """Halt free sites once all other sites have reached the cut."""
        if self._has_halted_free_sites or not self._free_sites:
            return
        if self._milestones.pending(SiteAtCut) <= self._free_sites:
            self._has_halted_free_sites = True
            self.sites.send(HaltFreeSite())

    def _send_peek_requests(self) -> None:
        while self._peek_requests:
            self.sites.send(self._peek_requests.popleft())

    # reports

    def _receive_reports(self) -> float:
        """Process the reports that have arrived; return the time of the last one."""
        for site, report in self.sites.receive():
            self._process_report(site, report)
            self._milestones.on_report(site, report)
        for site, why in self.sites.take_losses():
            self._lose(site, why)
        if not self._milestones.pending(
            SiteReady
        ):  # a site that is being made gives no sign of life
            self._silence.check()
        return self._milestones.last_report_s

    def _process_report(self, site: str, report: Report) -> None:
        match report:
            case SiteProgress():
                self._process_progress(site, report)
            case RoundsHeld():
                in_rounds = site not in self._unsynchronised_sites
                self._cut.on_rounds_held(site, report.begun if in_rounds else None)
            case CopiedPieces():
                self._assembly.write_ahead(site, report)
            case CopiedAhead():
                self._assembly.on_copied_ahead(site, report)
            case ArrayBytes():
                self._assembly.add_array(site, report)
            case SavedPieces():
                self._assembly.add_pieces(report)
            case SavedParts():
                self._assembly.add_parts(site, report)
            case PartsNotSaved():
                self._assembly.give_up(report)
            case StandsStill():
                self._assembly.on_stands_still(site, report)
            case SiteTokenHashes():
                self._reorderer.add_hashes(report.hashes)
            case TokenSummary():
                self.summaries[report.number] = report
            case MakingNode():
                self._statuses.update_activity(site, Activity("starting", instance=report.instance))
            case PeerReplaced():
                self._restarts.on_peer_replaced(site, report)
            case SiteReady():
                self._restarts.on_ready(site)
                self._statuses.update_activity(site, Activity("idle"))
                self._leases.limit_by_memory(report.state_bytes)
            case TrainItersReached():
                why = limit_reached("train_iters", report.train_iters)
                self._cut_after(site, report.position, why)
            case SiteResults():
                self._states |= report.states
                self._reports_at_cut += report.reports
                self._reorderer.irregularities.dropped += report.dropped_tokens
                self._irregularities += report.irregularities
                self._refusals += report.refusals
            case SiteClosed():
                self._irregularities += report.errors
            case SiteAtCut() | PartsLoaded():
                pass  # milestones
            case _:
                assert_never(report)

    def _process_progress(self, site: str, progress: SiteProgress) -> None:
        is_free = site in self._free_sites
        if site in self._elastic_sites:
            self._progress.add(site, progress)
        self._leases.set_rounds(site, progress.rounds)
        self._statuses.update(progress.status)
        (self._ledger.add_settled if is_free else self._ledger.add)(progress.counts)
        if is_free:
            self._assembly.count_free(site, progress.counts)
        for record in progress.records:
            (self._reorderer.emit_now if is_free else self._reorderer.add)(record)
            if isinstance(record.record, VerdictRecord):
                why: CutReason = ("verdict", record.record.reason)
                self._cut_after(site, record.position, why)

    def _cut_after(self, site: str, position: Position, why: CutReason) -> None:
        """Cut after an event on a site. The position of a free site means nothing to other sites."""
        if site in self._free_sites:
            self._cut.request(why)
        else:
            self._cut.cut_at(position, why)
