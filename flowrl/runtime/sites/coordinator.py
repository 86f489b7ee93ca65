"""The coordinator: executes a graph on several sites.

It starts the sites, grants them leases, collects what they report, and decides where the run is cut. It sees no
token. What nodes record reaches the run in the serial order (`record_reorderer`). `messages` lists what it says
to sites and they to it.
"""

from __future__ import annotations

import time
from math import inf

from flowrl.checks.check import CheckedGraph
from flowrl.checks.site_kinds import free_sites, paced_sites, rounds_behind
from flowrl.core.context import VerdictRecord
from flowrl.core.state import Count, State
from flowrl.graph.model import Limits
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.control.count_ledger import CountLedger
from flowrl.runtime.control.cuts import CutPlanner, Why, is_earlier, limit_reached
from flowrl.runtime.control.leases import Leases
from flowrl.runtime.control.messages import (
    CutAt,
    GrantLease,
    HaltFreeSite,
    HashTokens,
    Report,
    SendResults,
    SiteAtCut,
    SiteClosed,
    SiteProgress,
    SiteReady,
    SiteResults,
    SiteTokenHashes,
    TrainItersReached,
)
from flowrl.runtime.control.record_reorderer import RecordReorderer
from flowrl.runtime.executor import Cut, Reason, weights_digest
from flowrl.runtime.records import RecordSink
from flowrl.runtime.site_state import Position
from flowrl.runtime.sites.launched_sites import LaunchedSites, RemoteHosts, SiteLost
from flowrl.runtime.sites.site_statuses import SiteStatuses
from flowrl.runtime.status import NodeStats, SiteStatus
from flowrl.runtime.token_hashing import Note

START_S = 300.0  # within which every site must be ready: imports and simulators take their time
RESULTS_S = 60.0
CLOSE_S = 4.0  # within which nodes should close; those that do not are named, and killed
STUCK_S = 60.0  # without progress, once the clock or a person has asked for a cut

Milestone = type[SiteReady | SiteAtCut | SiteResults | SiteClosed]
MILESTONES: dict[Milestone, str] = {  # of a site, and what one has not done that does not reach it
    SiteReady: "was not ready",
    SiteAtCut: "did not come to the cut",
    SiteResults: "did not send its results",
    SiteClosed: "did not close its nodes",
}


class Coordinator:
    """Executes a sound graph on several sites. An `Executor`, like the `SerialExecutor` of one."""

    def __init__(
        self,
        checked: CheckedGraph,
        sink: RecordSink,
        layout: SiteLayout,
        seed: int,
        limits: Limits,
        hosts: RemoteHosts | None = None,
    ) -> None:
        self.checked = checked.require_sound()
        self.limits = limits
        self.cuts = CutPlanner(checked, limits)
        self.sites = LaunchedSites(checked, layout, seed, hosts)
        self.began_s: float | None = None
        self.ended_s: float | None = None
        self._statuses = SiteStatuses(self.sites)
        self._free = free_sites(checked, layout)
        paced = paced_sites(checked, layout)
        behind = rounds_behind(checked) if paced and not self._free else 0
        names = self.sites.names
        self._leases = Leases(names, self._free, paced, behind, self.cuts.warm_rounds)
        self._ledger = CountLedger()
        self._reorderer = RecordReorderer(sink)
        self._missing = {milestone: set(names) for milestone in MILESTONES}  # sites, by milestone
        self._free_sites_halted = False
        self._cut: Position | None = None  # the earliest known one
        self._why: Why = ("done", "")
        self._asked: Why | None = None  # for the next possible cut
        self._asked_s = inf  # when that was
        self._reported_s = 0.0  # when the last report came
        self._states: dict[str, State] = {}
        self._irregularities: list[str] = []

    # what a run asks

    @property
    def counts(self) -> Count:
        if self._cut is None or self._missing[SiteAtCut]:
            return self._ledger.settled
        return self._ledger.at(self._cut)

    def node_stats(self) -> list[NodeStats]:
        index = {name: at for at, name in enumerate(self.checked.graph.nodes)}
        found = self._statuses.node_stats()
        return sorted(found, key=lambda node: index[node.instance.partition("#")[0]])

    def site_statuses(self) -> list[SiteStatus]:
        return self._statuses.current()

    def idle_s(self) -> dict[str, float]:
        return self._statuses.idle_s()

    def weights(self) -> dict[str, State]:
        """The learners' states at the cut, by `learner.port`."""
        keys = [
            f"{name}#{replica}." if replica else f"{name}."
            for name in self.checked.graph.nodes_of_role("learner")
            for replica in range(self.checked.graph.nodes[name].replicas)
        ]
        return {k: s for key in keys for k, s in self._states.items() if k.startswith(key)}

    def digest(self) -> str:
        return weights_digest(self._states)

    def irregularity_lines(self) -> list[str]:
        return [*self._reorderer.irregularities.lines(), *self._irregularities]

    def hash_tokens(self, note: Note) -> None:
        """Call `note` in the serial order."""
        self._reorderer.note = note

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        """Ask for a cut soon (from another thread, or a signal)."""
        self._asked = (reason, why)

    def close(self) -> None:
        self.sites.close()

    # a run

    def run(self) -> Cut:
        """Start the sites, and let them work up to the earliest cut."""
        for cut, why in self.cuts.known():
            self._cut_at(cut, why)
        self.sites.start()
        self._wait_for(SiteReady, START_S)
        if self._reorderer.note is not None:
            self.sites.send(HashTokens())
        if self._cut is not None:
            self.sites.send(CutAt(self._cut))
        self.began_s = began = time.perf_counter()
        while self._missing[SiteAtCut]:
            self._grant_lease(time.perf_counter() - began)
            self._receive_reports()
            self._require_progress()
            self._find_cuts(time.perf_counter() - began)
            self._release_records()
            self._halt_free_sites()
        self.ended_s = time.perf_counter()
        self._reorderer.release_before(None, self._cut)
        self.sites.send(SendResults())
        self._wait_for(SiteResults, RESULTS_S)
        self._wait_until_closed()
        assert self._cut is not None
        rounds = self._cut[0] + (len(self._cut) == 1) - self.cuts.warm_rounds
        return Cut(*self._why, max(rounds, 0), self.counts)

    def _wait_for(self, milestone: Milestone, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._missing[milestone]:
            self._receive_reports()
            if milestone is SiteReady and self._asked is not None:
                raise KeyboardInterrupt  # nothing has been done yet that a cut could keep
            if time.monotonic() > deadline:
                late = ", ".join(sorted(self._missing[milestone]))
                raise SiteLost(f"site {late} {MILESTONES[milestone]} within {timeout_s:g} s")

    def _wait_until_closed(self) -> None:
        """All results are there: a node that does not close is named, but does not make the run fail."""
        try:
            self._wait_for(SiteClosed, CLOSE_S)
        except SiteLost as error:
            self._irregularities.append(str(error))

    def _require_progress(self) -> None:
        """A node that hangs must not hang a run that was asked to end."""
        quiet_s = time.monotonic() - max(self._asked_s, self._reported_s)
        if quiet_s > STUCK_S:
            late = ", ".join(f"'{name}'" for name in sorted(self._missing[SiteAtCut]))
            what = f"site {late} did not come to the cut, and nothing went on for {STUCK_S:g} s"
            raise SiteLost(f"{what}; a node there may hang: `flowrl why` tells which")

    def _grant_lease(self, firing_s: float) -> None:
        """Let sites go on, and learners' sites forget the states that no cut goes back to."""
        leases = self._leases
        granted = leases.grant(firing_s)
        if granted is not None:
            settled = self._settled(leases.completed), self._settled(leases.fired)
            self.sites.send(GrantLease(granted, *settled))

    def _settled(self, rounds: int) -> int:
        """The rounds that no cut goes back to, of those that are over."""
        return rounds if self._cut is None else min(rounds, self._cut[0])

    def _release_records(self) -> None:
        """Pass on the records of rounds that all sites have completed, and sum up their counts."""
        completed = self._leases.completed
        self._reorderer.release_before(completed, self._cut)
        self._ledger.settle(self._settled(completed))

    def _halt_free_sites(self) -> None:
        """Free sites end once all others have reached the cut."""
        if self._free and not self._free_sites_halted and self._missing[SiteAtCut] <= self._free:
            self._free_sites_halted = True
            self.sites.send(HaltFreeSite())

    # reports

    def _receive_reports(self) -> None:
        for site, report in self.sites.receive():
            self._reported_s = time.monotonic()
            self._take_in(site, report)
            if isinstance(report, SiteReady | SiteAtCut | SiteResults | SiteClosed):
                self._missing[type(report)].discard(site)

    def _take_in(self, site: str, report: Report) -> None:
        if isinstance(report, SiteProgress):
            self._take_in_progress(site, report)
        elif isinstance(report, SiteTokenHashes):
            self._reorderer.add_hashes(report.hashes)
        elif isinstance(report, SiteReady):
            self._leases.limit_by_memory(report.state_bytes)
        elif isinstance(report, TrainItersReached):
            why = limit_reached("train_iters", report.train_iters)
            self._cut_at(self._cut_for(site, report.position), why)
        elif isinstance(report, SiteResults):
            self._states |= report.states
            self._reorderer.irregularities.dropped += report.dropped_tokens
            self._irregularities += report.irregularities
        elif isinstance(report, SiteClosed):
            self._irregularities += report.errors

    def _take_in_progress(self, site: str, progress: SiteProgress) -> None:
        is_free = site in self._free
        self._leases.set_rounds(site, progress.rounds)
        self._statuses.update(progress.status)
        (self._ledger.add_settled if is_free else self._ledger.add)(progress.counts)
        for record in progress.records:
            (self._reorderer.emit_now if is_free else self._reorderer.add)(record)
            if isinstance(record.record, VerdictRecord):
                why: Why = ("verdict", record.record.reason)
                self._cut_at(self._cut_for(site, record.position), why)

    # cuts

    def _cut_for(self, site: str, position: Position) -> Position:
        """Where all sites are cut for what happened on one: positions of a free site mean nothing to the others."""
        return self.cuts.soon(self._leases.completed) if site in self._free else position

    def _find_cuts(self, firing_s: float) -> None:
        limits, fired = self.limits, self._leases.fired
        if limits.steps is not None and self.cuts.steps is None:  # only known by counting
            reached = self._ledger.round_of(limits.steps, fired)
            if reached is not None and fired > self.cuts.warm_rounds:
                at = max(reached, self.cuts.warm_rounds)
                self._cut_at((at,), limit_reached("steps", limits.steps))
        if limits.time_s is not None and firing_s >= limits.time_s and self._asked is None:
            self._asked = ("time", f"{limits.time_s:g} s were asked for")
        if (
            self._asked is not None
        ):  # in the round of the slowest site: what others did is discarded
            self._cut_at(self.cuts.soon(fired), self._asked)
            self._asked_s = min(self._asked_s, time.monotonic())
            self._asked = None

    def _cut_at(self, cut: Position, why: Why) -> None:
        """Cut at this position, unless an earlier cut is known."""
        if self._cut is not None and not is_earlier(cut, why, self._cut, self._why):
            return
        self._cut, self._why = cut, why
        if not self._missing[SiteReady]:
            self.sites.send(CutAt(cut))
