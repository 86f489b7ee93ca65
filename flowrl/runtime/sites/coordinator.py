"""The coordinator: executes a graph on several sites.

It starts the sites, grants them leases, collects their reports, and decides where the run is cut. It sees no tokens.
It passes the sites' records to the run in the serial order (`control.record_reorderer`). `control.messages` lists all
messages between it and the sites.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.checks.lossy_edges import may_lack_tokens_anywhere, nodes_that_may_skip_firings
from flowrl.checks.site_kinds import elastic_sites, free_sites, paced_sites, rounds_behind
from flowrl.core.batch import Array
from flowrl.core.context import VerdictRecord
from flowrl.core.errors import RunError
from flowrl.core.saved_state import SavedState
from flowrl.core.state import Count, State
from flowrl.graph.model import Limits
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.control.count_ledger import CountLedger, difference, total
from flowrl.runtime.control.cuts import CutPlanner, completed_at, is_earlier
from flowrl.runtime.control.leases import Leases
from flowrl.runtime.control.messages import (
    CutAt,
    GoOn,
    GrantLease,
    HaltFreeSite,
    HashTokens,
    HoldRounds,
    JoinRun,
    LoadParts,
    MakingNode,
    PartsLoaded,
    PartsNotSaved,
    PeerReplaced,
    Report,
    RoundsHeld,
    SavedParts,
    SavedPieces,
    SavePartsAt,
    SaveStandingStill,
    SendResults,
    SiteAtCut,
    SiteClosed,
    SiteProgress,
    SiteReady,
    SiteResults,
    SiteTokenHashes,
    SnapshotStored,
    StandsStill,
    StandStill,
    TrainItersReached,
    decode_parts,
    encode_parts,
    with_pieces,
)
from flowrl.runtime.control.record_reorderer import RecordReorderer
from flowrl.runtime.disturbances import Disturbance
from flowrl.runtime.executor import Cut, CutReason, Reason, limit_reached, weights_digest
from flowrl.runtime.interruptions import RunInterrupted
from flowrl.runtime.records import RecordSink
from flowrl.runtime.site_state import Position
from flowrl.runtime.sites.launched_sites import LaunchedSites, RemoteHosts, SiteFailed, SiteLost
from flowrl.runtime.sites.part_sites import site_of_parts
from flowrl.runtime.sites.silence_watch import SilenceWatch
from flowrl.runtime.sites.site_restarts import ElasticProgress, SiteRestarts
from flowrl.runtime.sites.site_statuses import SiteStatuses
from flowrl.runtime.snapshot import node_key
from flowrl.runtime.snapshot_schedule import Snapshot, SnapshotSink
from flowrl.runtime.status import Activity, NodeStats, SiteStatus, in_graph_order
from flowrl.runtime.token_hashing import TokenHashSink
from flowrl.runtime.token_summary import PeekRequest, TokenSummary

START_S = 300.0  # in which every site must be ready: imports and simulators may take long
RESULTS_S = 60.0  # without any report: the parts of a snapshot may take longer to arrive
CLOSE_S = 4.0  # in which nodes should close; the others are named and killed
STUCK_S = 60.0  # without reports, after a cut was requested, before a node counts as hanging

Milestone = type[SiteReady | PartsLoaded | SiteAtCut | SiteResults | SiteClosed]
MILESTONES: dict[Milestone, str] = {  # with the error text for a site that does not reach it
    SiteReady: "was not ready",
    PartsLoaded: "did not load its part of the snapshot",
    SiteAtCut: "did not reach the cut",
    SiteResults: "did not send its results",
    SiteClosed: "did not close its nodes",
}


@dataclass(slots=True)
class PendingSnapshot:
    """A snapshot of which some parts are missing."""

    sites: set[str]  # whose parts are missing
    parts: dict[str, SavedState] = field(default_factory=dict)
    pieces: dict[str, dict[str, dict[int, Array]]] = field(default_factory=dict)  # by part, array
    # At its end of a round, once all sites in rounds have reached it: without the counts of free sites.
    counts: Count | None = None
    free_counts: dict[str, Count] = field(
        default_factory=dict
    )  # of free sites, when they saved their parts
    mark: Any = None


@dataclass(slots=True)
class Standstill:
    """All sites stand still for a snapshot after these rounds, because otherwise tokens would be lost on their way."""

    rounds: int
    is_requested: bool = (
        False  # whether the sites were told, once those in rounds have completed these
    )
    moving: set[str] = field(default_factory=set)  # the sites that have not answered
    sent: dict[str, int] = field(default_factory=dict)  # tokens, by channel


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
        self.limits = limits
        self.cuts = CutPlanner(checked, limits)
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
        self._unsynchronised_sites = self._free_sites | paced
        behind = rounds_behind(checked) if paced and not self._free_sites else 0
        names = self.sites.names
        self._leases = Leases(names, self._free_sites, paced, behind, self.cuts.warm_up_rounds)
        self._ledger = CountLedger()
        self._reorderer = RecordReorderer(sink)
        # By milestone: the sites that have not reached it.
        self._pending_sites = {milestone: set(names) for milestone in MILESTONES}
        self._has_halted_free_sites = False
        self._cut: Position | None = None  # the earliest known one
        self._why: CutReason = ("done", "")
        # A requested cut falls in the newest round that any site has begun, which the sites are asked for: so no site
        # has to keep states of earlier rounds for it, and no firing in rounds is discarded.
        self._requested_cut: CutReason | None = None  # requested, and not chosen yet
        self._sites_to_hold: set[str] = set()  # those that were asked and have not answered
        self._newest_round = 0
        self._cut_requested_s = inf  # the time of the first request
        self._last_report_s = 0.0  # the time of the last report
        self.summaries: dict[int, TokenSummary] = {}
        self.snapshots: SnapshotSink | None = None
        self._pending_snapshots: dict[int, PendingSnapshot] = {}  # by completed rounds
        # Where nodes may lack tokens, no rounds say which tokens are on their way between two sites.
        self._needs_standstill = bool(nodes_that_may_skip_firings(checked.program))
        self._standstill: Standstill | None = None
        self._standstills = 0  # that were asked for so far
        self._saves_at_end = False  # of a run that needs a standstill
        self._stored_rounds: int | None = None  # of which the sites know that they are stored
        self._continued: Snapshot | None = None
        self._part_sites = site_of_parts(checked, layout)
        self._free_counts: dict[str, Count] = {}  # by free site, since this part of the run began
        self._may_begin_anew = elastic_sites(checked, layout)
        # By elastic site: the parts that it has saved last, for snapshots that are saved while it is away.
        self._last_parts: dict[str, dict[str, SavedState]] = {}
        self._peek_requests: deque[PeekRequest] = deque()
        self._disturbances: deque[Disturbance] = deque()
        self._recorded: tuple[str, ...] = ()  # the inputs whose tokens are recorded
        self._states: dict[str, State] = {}
        self._irregularities: list[str] = []
        self._refusals: list[str] = []  # of the sites
        for site in layout.later:
            self._expect(site, is_there=site not in layout.absent)

    # the methods of `Executor`

    @property
    def counts(self) -> Count:
        if self._cut is None or self._pending_sites[SiteAtCut]:
            return self._ledger.settled
        return self._ledger.counts_at(self._cut)

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
        self._requested_cut = (reason, why)

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
        for cut, why in self.cuts.known_cuts(may_miss_firings=bool(self._elastic_sites)):
            self._cut_at(cut, why)
        if self._elastic_sites and self.limits.steps is not None and self.cuts.known_steps:
            self._leases.last_round = self.cuts.round_of(self.limits.steps)
        self.sites.start()
        self._wait_for(SiteReady, START_S)
        if self._reorderer.hash_sink is not None:
            self.sites.send(HashTokens(self._recorded))
        if self._cut is not None:
            self.sites.send(CutAt(self._cut))
        if self._continued is not None:
            self._load_parts(self._continued)
        if self.snapshots is not None:
            begun = self._leases.granted  # 0, or the rounds after which a run continues
            self._save_at(rounds for rounds in self.snapshots.schedule.known if rounds > begun)
        self.began_s = began = time.perf_counter()
        while self._pending_sites[SiteAtCut]:
            self._grant_lease(time.perf_counter() - began)
            self._receive_reports()
            self._restart_lost_sites()
            self._require_progress()
            self._find_cuts(time.perf_counter() - began)
            self._release_records()
            self._halt_free_sites()
            self._send_peek_requests()
            while self._disturbances:
                self.sites.disturb(self._disturbances.popleft())
        self.ended_s = time.perf_counter()
        assert self._cut is not None
        self._release_snapshots(completed_at(self._cut))
        if self._saves_at_end and len(self._cut) == 1:
            self._save_at_end(completed_at(self._cut))
        self._reorderer.release_before(None, self._cut)
        self.sites.send(SendResults())
        self._wait_for(SiteResults, RESULTS_S)
        self._wait_until_closed()
        assert self._cut is not None
        rounds = completed_at(self._cut) - self.cuts.warm_up_rounds
        return Cut(*self._why, max(rounds, 0), self.counts)

    def _wait_for(self, milestone: Milestone, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._pending_sites[milestone]:
            self._receive_reports()
            if milestone is SiteResults:
                deadline = max(deadline, self._last_report_s + timeout_s)
            if milestone is SiteReady and self._requested_cut is not None:
                raise RunInterrupted  # no site has fired, so there is nothing to keep
            if time.monotonic() > deadline:
                late = ", ".join(sorted(self._pending_sites[milestone]))
                kind = SiteFailed if milestone is SiteReady else SiteLost  # it would be late again
                raise kind(f"site {late} {MILESTONES[milestone]} within {timeout_s:g} s")

    def _wait_until_closed(self) -> None:
        """Wait until all nodes are closed. A node that does not close is reported, but the run does not fail."""
        try:
            self._wait_for(SiteClosed, CLOSE_S)
        except SiteLost as error:
            self._irregularities.append(str(error))

    def _require_progress(self) -> None:
        """Raise an error if the sites make no progress towards a requested cut, because a node hangs."""
        quiet_s = time.monotonic() - max(self._cut_requested_s, self._last_report_s)
        if quiet_s > STUCK_S:
            names = self._sites_to_hold or self._pending_sites[SiteAtCut]
            late = ", ".join(f"'{name}'" for name in sorted(names))
            what = f"site {late} did not reach the cut, and reported nothing for {STUCK_S:g} s"
            raise SiteLost(f"{what}; one of its nodes may hang: see `flowrl why`")

    def _grant_lease(self, firing_s: float) -> None:
        """Let sites begin more rounds, and let learners' sites forget states that no cut can recall."""
        if self._standstill is not None:
            self._stand_still(self._standstill)
            return
        leases, before = self._leases, self._leases.granted
        granted = leases.grant(firing_s)
        if granted is not None:
            if self.snapshots is not None:  # no site can have completed the first of these rounds
                due = self.snapshots.schedule.due_within(before + 1, granted)
                if not self._needs_standstill:
                    self._save_at(due)
                elif due - self.snapshots.schedule.known:
                    self._standstill = Standstill(granted)
            self._settle(granted)

    def _settle(self, granted: int) -> None:
        """Tell sites up to which round they may go, and before which no cut can fall."""
        rounds = self._settled(self._leases.completed_rounds)
        paced_rounds = self._settled(self._leases.fired_rounds)
        self.sites.send(GrantLease(granted, rounds, paced_rounds))

    def _settled(self, rounds: int) -> int:
        """Return how many of these completed rounds no cut can fall before."""
        return rounds if self._cut is None else min(rounds, completed_at(self._cut))

    def _release_records(self) -> None:
        """Release the records of rounds that all sites have completed, and sum up their counts."""
        completed = self._leases.completed_rounds
        self._release_snapshots(completed)
        self._reorderer.release_before(completed, self._cut)
        # The counts of the round of the cut stay apart: `_find_cuts` asks in which round a limit was reached.
        self._ledger.settle(completed if self._cut is None else min(completed, self._cut[0]))

    # elastic sites

    def _restart_lost_sites(self) -> None:
        """Start lost sites again, and let those take part that are ready. Where the run ends, nobody waits for them."""
        is_warm = self._leases.completed_rounds >= self.cuts.warm_up_rounds
        if is_warm and self._restarts_sites:  # the phases of the warm-up need all sites
            self.sites.replaceable = self._elastic_sites
        absent = self._restarts.absent
        if not absent:
            return
        at_work = set(self.sites.names) - self._free_sites - absent
        is_ending = bool(at_work) and at_work.isdisjoint(self._pending_sites[SiteAtCut])
        if is_ending or self._cut_requested_s < inf:
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
            for milestone in (SiteReady, PartsLoaded):
                self._pending_sites[milestone].discard(site)

    def _lose(self, site: str, why: str) -> None:
        """Go on without a site, until it is started again. At the end of a run it is not."""
        self._silence.ignore(site)
        self._go_on()  # tokens that the lost site has sent may never arrive
        if site not in self._rounds_of_lost:
            self._rounds_of_lost[site] = self._leases.remove(site)
        if self._cut_requested_s < inf or site not in self._pending_sites[SiteAtCut]:
            self._restarts.leave_out(site, why)
            self._leave_out(site)
            return
        self._statuses.update_activity(site, Activity("starting"))
        self._restarts.lose(site, why)

    def _leave_out(self, site: str) -> None:
        self._restarts.leave_out(site)
        for pending in (self._sites_to_hold, *self._pending_sites.values()):
            pending.discard(site)

    def _let_join(self, site: str) -> None:
        """Let a site that was started again take part from the round on in which the others are."""
        rounds = self._leases.add(site, self._rounds_of_lost.pop(site))
        self._silence.watch(site)
        send_to = self.sites.send_to
        if self._reorderer.hash_sink is not None:
            send_to(site, HashTokens(self._recorded))
        if self._cut is not None:
            send_to(site, CutAt(self._cut))
        send_to(site, JoinRun(rounds, self._progress.of_site(site)))
        self._settle(self._leases.granted)

    # snapshots

    def _save_at(self, rounds: Iterable[int]) -> None:
        """Let all sites save their parts when they have completed these rounds."""
        self._announce_stored()
        for number in sorted(set(rounds) - self._pending_snapshots.keys()):
            if self._needs_standstill:
                self._saves_at_end = True
                continue
            self._pending_snapshots[number] = PendingSnapshot(set(self.sites.names))
            self.sites.send(SavePartsAt(number))

    def _stand_still(self, still: Standstill) -> None:
        """Let all sites stand still once those in rounds have completed the last ones of their lease."""
        if still.is_requested or self._leases.completed_rounds < still.rounds:
            return
        still.is_requested = True
        still.moving = set(self.sites.names) - self._restarts.away
        self._announce_stored()
        self._pending_snapshots[still.rounds] = PendingSnapshot({*still.moving})
        self._standstills += 1
        self.sites.send(StandStill(self._standstills, still.rounds))

    def _on_stands_still(self, site: str, report: StandsStill) -> None:
        still = self._standstill
        if still is None or report.number != self._standstills:
            return  # the answer to one that was given up
        still.moving.discard(site)
        still.sent.update(report.sent)
        if not still.moving:
            self.sites.send(SaveStandingStill(still.sent))

    def _go_on(self) -> None:
        """Let sites that stand still fire again: the snapshot is complete, or cannot be saved."""
        still, self._standstill = self._standstill, None
        if still is not None and still.is_requested:
            self._pending_snapshots.pop(still.rounds, None)
            self.sites.send(GoOn())

    def _save_at_end(self, rounds: int) -> None:
        """Save the snapshot of the cut, in which no site fires any more."""
        if self._standstill is not None:
            self._go_on()
        self._standstill = Standstill(rounds)
        self._stand_still(self._standstill)
        deadline = time.monotonic() + RESULTS_S
        while self._standstill is not None:
            self._receive_reports()
            if time.monotonic() > max(deadline, self._last_report_s + RESULTS_S):
                late = ", ".join(f"'{name}'" for name in sorted(self._standstill.moving))
                self._go_on()
                if self.snapshots is not None:
                    why = f"the sites have not saved their parts within {RESULTS_S:g} s"
                    self.snapshots.fail(f"{why}; waiting for {late or 'tokens on their way'}")

    def _announce_stored(self) -> None:
        """Tell sites which snapshot is stored, so that they do not copy again what it has."""
        rounds = None if self.snapshots is None else self.snapshots.stored_rounds
        if rounds is not None and rounds != self._stored_rounds:
            self._stored_rounds = rounds
            self.sites.send(SnapshotStored(rounds))

    def _release_snapshots(self, completed: int) -> None:
        """Mark the run's files for snapshots of rounds that all sites have completed, at the end of those rounds."""
        for rounds, pending in sorted(self._pending_snapshots.items()):
            if rounds <= completed and pending.counts is None and self.snapshots is not None:
                self._reorderer.release_before(rounds, self._cut)
                so_far = self._ledger.counts_at((rounds - 1,))
                pending.counts = difference(so_far, total(self._free_counts.values()))
                pending.mark = self.snapshots.mark()
                # Sites send their parts when no cut can fall before.
                self._settle(self._leases.granted)

    def _add_pieces(self, saved: SavedPieces) -> None:
        if (pending := self._pending_snapshots.get(saved.rounds)) is not None:
            arrays = pending.pieces.setdefault(saved.key, {})
            new = zip(saved.indices, saved.pieces, strict=True)
            arrays.setdefault(saved.name, {}).update(new)

    def _add_parts(self, site: str, saved: SavedParts) -> None:
        pending = self._pending_snapshots.get(saved.rounds)
        if pending is None:
            return  # another site could not save its parts
        own = {
            key: with_pieces(part, pending.pieces.pop(key, {}))
            for key, part in decode_parts(saved.parts).items()
        }
        pending.parts |= own
        if site in self._free_counts:
            pending.free_counts[site] = self._free_counts[site]
        # Pieces that are stored already are found in the snapshots before, but not for ever.
        if site in self._may_begin_anew and not any(part.pieces for part in own.values()):
            self._last_parts[site] = own
        self._complete_snapshot(saved.rounds, pending, site)

    def _complete_snapshot(self, rounds: int, pending: PendingSnapshot, site: str) -> None:
        """Wait no more for the parts of this site, and write the snapshot if they were the last ones."""
        pending.sites.discard(site)
        if pending.sites or self.snapshots is None:
            return
        self._release_snapshots(rounds)
        assert pending.counts is not None
        for away in self._restarts.away:
            pending.parts = {**self._last_parts.get(away, {}), **pending.parts}
        counts = total([pending.counts, *(self._free_counts | pending.free_counts).values()])
        del self._pending_snapshots[rounds]
        self._go_on()
        self.snapshots.write(Snapshot(rounds, counts, pending.mark, pending.parts))

    def _load_parts(self, snapshot: Snapshot) -> None:
        """Let all sites load their parts of a snapshot, and count from there."""
        own: dict[str, dict[str, SavedState]] = {name: {} for name in self.sites.names}
        for key, saved in snapshot.parts.items():
            if key not in self._part_sites:
                raise RunError(f"the snapshot has the part '{key}', which the graph does not have")
            own[self._part_sites[key]][key] = saved
        fired = self._fired_without_rounds(snapshot)
        for name, parts in own.items():
            if name in self._may_begin_anew:
                self._last_parts[name] = parts
            elif not parts:
                raise RunError(f"the snapshot has no part of site '{name}'; it is of another graph")
            if name not in self._restarts.absent:
                load = LoadParts(snapshot.rounds, encode_parts(parts), fired)
                self.sites.send_to(name, load)
        self._leases.begin_after(snapshot.rounds)
        self._ledger.settled = snapshot.counts
        self._newest_round = snapshot.rounds
        self._wait_for(PartsLoaded, START_S)

    def _fired_without_rounds(self, snapshot: Snapshot) -> dict[str, int]:
        """Return how often nodes had fired that may lack tokens and pace others."""
        program = self.checked.program
        pacers = {paced.source.node for paced in program.paced} & may_lack_tokens_anywhere(program)
        parts = {name: snapshot.parts.get(node_key(name)) for name in pacers}
        return {name: int(part.state_dict()["fired"]) for name, part in parts.items() if part}

    def _halt_free_sites(self) -> None:
        """Halt free sites once all other sites have reached the cut."""
        if self._has_halted_free_sites or not self._free_sites:
            return
        if self._pending_sites[SiteAtCut] <= self._free_sites:
            self._has_halted_free_sites = True
            self.sites.send(HaltFreeSite())

    def _send_peek_requests(self) -> None:
        while self._peek_requests:
            self.sites.send(self._peek_requests.popleft())

    # reports

    def _receive_reports(self) -> None:
        for site, report in self.sites.receive():
            self._last_report_s = time.monotonic()
            self._process_report(site, report)
            if isinstance(report, SiteReady | PartsLoaded | SiteAtCut | SiteResults | SiteClosed):
                self._pending_sites[type(report)].discard(site)
        for site, why in self.sites.take_losses():
            self._lose(site, why)
        if not self._pending_sites[SiteReady]:  # a site that is being made gives no sign of life
            self._silence.check()

    def _process_report(self, site: str, report: Report) -> None:
        if isinstance(report, SiteProgress):
            self._process_progress(site, report)
        elif isinstance(report, RoundsHeld):
            self._sites_to_hold.discard(site)
            if site not in self._unsynchronised_sites:
                self._newest_round = max(self._newest_round, report.begun - 1)
        elif isinstance(report, SavedPieces):
            self._add_pieces(report)
        elif isinstance(report, SavedParts):
            self._add_parts(site, report)
        elif isinstance(report, PartsNotSaved):
            if self._pending_snapshots.pop(report.rounds, None) and self.snapshots is not None:
                self.snapshots.fail(report.problem)
                self._go_on()
        elif isinstance(report, StandsStill):
            self._on_stands_still(site, report)
        elif isinstance(report, SiteTokenHashes):
            self._reorderer.add_hashes(report.hashes)
        elif isinstance(report, TokenSummary):
            self.summaries[report.number] = report
        elif isinstance(report, MakingNode):
            self._statuses.update_activity(site, Activity("starting", instance=report.instance))
        elif isinstance(report, PeerReplaced):
            self._restarts.on_peer_replaced(site, report)
        elif isinstance(report, SiteReady):
            self._restarts.on_ready(site)
            self._statuses.update_activity(site, Activity("idle"))
            self._leases.limit_by_memory(report.state_bytes)
        elif isinstance(report, TrainItersReached):
            why = limit_reached("train_iters", report.train_iters)
            self._cut_after(site, report.position, why)
        elif isinstance(report, SiteResults):
            self._states |= report.states
            self._reorderer.irregularities.dropped += report.dropped_tokens
            self._irregularities += report.irregularities
            self._refusals += report.refusals
        elif isinstance(report, SiteClosed):
            self._irregularities += report.errors

    def _process_progress(self, site: str, progress: SiteProgress) -> None:
        is_free = site in self._free_sites
        if site in self._elastic_sites:
            self._progress.add(site, progress)
        self._leases.set_rounds(site, progress.rounds)
        self._statuses.update(progress.status)
        (self._ledger.add_settled if is_free else self._ledger.add)(progress.counts)
        if is_free:
            counted = [
                self._free_counts.get(site, Count()),
                *(one.counts for one in progress.counts),
            ]
            self._free_counts[site] = total(counted)
        for record in progress.records:
            (self._reorderer.emit_now if is_free else self._reorderer.add)(record)
            if isinstance(record.record, VerdictRecord):
                why: CutReason = ("verdict", record.record.reason)
                self._cut_after(site, record.position, why)

    # cuts

    def _cut_after(self, site: str, position: Position, why: CutReason) -> None:
        """Cut after an event on a site. The position of a free site means nothing to other sites."""
        if site in self._free_sites:
            self._requested_cut = why
        else:
            self._cut_at(position, why)

    def _find_cuts(self, firing_s: float) -> None:
        limits, fired = self.limits, self._leases.fired_rounds
        self._find_cut_of_steps_that_may_miss()
        if limits.steps is not None and self.cuts.known_steps is None:  # the steps must be counted
            reached = self._ledger.round_of(limits.steps, fired)
            if reached is not None and fired > self.cuts.warm_up_rounds:
                last_round = max(reached, self.cuts.warm_up_rounds)
                self._cut_at((last_round,), limit_reached("steps", limits.steps))
        is_new = self._cut_requested_s == inf
        if limits.time_s is not None and firing_s >= limits.time_s and is_new:
            self._requested_cut = limit_reached("time", limits.time_s)
        if self._requested_cut is None:
            return
        if is_new:
            self._cut_requested_s = time.monotonic()
            self._sites_to_hold = set(self.sites.names) - self._restarts.absent
            self.sites.send(HoldRounds())
        elif not self._sites_to_hold:
            if self.snapshots is not None:
                self._save_at([self._newest_round + 1])
            self._cut_at((self._newest_round,), self._requested_cut)
            self._requested_cut = None
            if self._cut is not None:
                # An earlier cut is told again, which ends the hold.
                self.sites.send(CutAt(self._cut))

    def _find_cut_of_steps_that_may_miss(self) -> None:
        """Cut after the last round of the leases if it brings the env steps; otherwise allow more rounds."""
        last_round = self._leases.last_round
        if self._leases.completed_rounds <= last_round:
            return
        assert self.limits.steps is not None
        assert self.cuts.known_steps is not None
        missing = self.limits.steps - self._ledger.counts_at((int(last_round),)).env_steps
        if missing > 0:
            self._leases.last_round += -(-missing // self.cuts.known_steps[1])
        else:
            self._cut_at((int(last_round),), limit_reached("steps", self.limits.steps))

    def _cut_at(self, cut: Position, why: CutReason) -> None:
        """Cut at this position, unless an earlier cut is known."""
        if self._cut is not None and not is_earlier(cut, why, self._cut, self._why):
            return
        self._cut, self._why = cut, why
        if not self._pending_sites[SiteReady]:
            self.sites.send(CutAt(cut))
