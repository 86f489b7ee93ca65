"""The coordinator: grants rounds, collects what sites tell, and cuts.

It sees no token. What sites tell is put back into the order of the program, and told to the run once no site can
tell anything before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Any

from flowrl.checks.check import CheckedGraph
from flowrl.core.context import VerdictRecord
from flowrl.core.state import Count, State
from flowrl.graph.model import Limits
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.control.cuts import CutPlanner, Why, asked, is_earlier
from flowrl.runtime.control.free_sites import free_sites
from flowrl.runtime.control.leases import Leases
from flowrl.runtime.control.ledger import CountLedger
from flowrl.runtime.control.messages import as_told
from flowrl.runtime.control.paced_sites import paced_sites, rounds_behind
from flowrl.runtime.control.record_reorderer import RecordReorderer
from flowrl.runtime.control.site_statuses import SiteStatuses
from flowrl.runtime.executor import Cut, InstanceTimes, Reason, weights_digest
from flowrl.runtime.processes.launched_sites import LaunchedSites, RemoteHosts, SiteLost
from flowrl.runtime.records import RecordSink
from flowrl.runtime.site_state import Position
from flowrl.runtime.status import AgedStatus
from flowrl.runtime.token_hashing import Note

START_S = 300.0  # in which every site must be ready: imports and simulators take their time
STATES_S = 60.0
CLOSE_S = 4.0  # in which nodes should close; those that do not are told, and killed
STUCK_S = 60.0  # without progress, when a cut was asked for by the clock, or by a person


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
    ) -> None:
        self.checked = checked.require_sound()
        self.limits = limits
        self.cuts = CutPlanner(checked, limits)
        self.sites = LaunchedSites(checked, layout, seed, hosts)
        names = self.sites.names
        self._free = free_sites(checked, layout)
        self._halting = False
        paced = paced_sites(checked, layout)
        behind = rounds_behind(checked) if paced and not self._free else 0
        self._leases = Leases(names, self._free, paced, behind, self.cuts.warm_rounds)
        self._missing = {word: set(names) for word in ("ready", "stopped", "states", "closed")}
        self._ledger = CountLedger()
        self._retelling = RecordReorderer(sink)
        self.watched = SiteStatuses(self.sites)
        self._states: dict[str, State] = {}
        self._noted: list[str] = []
        self.began_s: float | None = None  # the first firing may begin
        self.ended_s: float | None = None
        self._stop: Position | None = None
        self._why: Why = ("done", "")
        self._asked: Why | None = None
        self._hurries_s = inf  # since when it is meant to end
        self._heard_s = 0.0

    # what a run asks

    @property
    def counts(self) -> Count:
        """What has been done where the run is cut, or so far."""
        if self._stop is None or self._missing["stopped"]:
            return self._ledger.settled
        return self._ledger.at(self._stop)

    def instance_times(self) -> list[InstanceTimes]:
        """Each instance, its firings and its time, in the order of the graph."""
        place = {name: at for at, name in enumerate(self.checked.graph.nodes)}
        found = self.watched.instance_times()
        return sorted(found, key=lambda account: place[account.key.partition("#")[0]])

    def site_statuses(self) -> dict[str, AgedStatus | None]:
        """What there is to see of each site just now (from any thread); None: nothing yet."""
        return self.watched.sites()

    def idle_s(self) -> dict[str, float]:
        """How long each site waited to be allowed to go on."""
        return self.watched.idle_s()

    def weights(self) -> dict[str, State]:
        """The learners' states at the cut, by `learner.port`."""
        keys = [
            f"{name}#{replica}." if replica else f"{name}."
            for name in self.checked.graph.nodes_of_role("learner")
            for replica in range(self.checked.graph.nodes[name].replicas)
        ]
        return {k: s for key in keys for k, s in self._states.items() if k.startswith(key)}

    def digest(self) -> str:
        """The SHA-256 over the learners' weights, sorted by name."""
        return weights_digest(self._states)

    def irregularity_lines(self) -> list[str]:
        """What made this run differ from a deterministic one, and what would not close."""
        return [*self._retelling.irregularities.lines(), *self._noted]

    def hash_tokens(self, note: Note) -> None:
        """Note every token that is given, and every version that is seen, in the order of the program."""
        self._retelling.note = note

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        """Cut soon (from another thread, or a signal)."""
        self._asked = (reason, why)

    def close(self) -> None:
        """End every site, in bounded time."""
        self.sites.close()

    # a run

    def run(self) -> Cut:
        """Start the sites, and let them work up to the earliest cut."""
        for cut, why in self.cuts.known():
            self._cut_at(cut, why)
        self.sites.start()
        self._wait("ready", START_S)
        if self._retelling.note is not None:
            self.sites.say("hash")
        if self._stop is not None:
            self.sites.say("stop", *self._stop)
        self.began_s = began = time.perf_counter()
        while self._missing["stopped"]:
            self._grant(time.perf_counter() - began)
            self._listen()
            self._demand_progress()
            self._look_for_cuts(time.perf_counter() - began)
            self._tell()
            self._halt()
        self.ended_s = time.perf_counter()
        self._retelling.tell_before(None, self._stop)
        self.sites.say("states")
        self._wait("states", STATES_S)
        self._wait_until_closed()
        assert self._stop is not None
        rounds = self._stop[0] + (len(self._stop) == 1) - self.cuts.warm_rounds
        return Cut(*self._why, max(rounds, 0), self.counts)

    def _wait(self, word: str, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        while self._missing[word]:
            self._listen()
            if word == "ready" and self._asked is not None:
                raise KeyboardInterrupt  # nothing has been done yet that a cut could keep
            if time.monotonic() > deadline:
                late = ", ".join(sorted(self._missing[word]))
                raise SiteLost(f"site {late}: no '{word}' came in {deadline_s:g} s")

    def _wait_until_closed(self) -> None:
        """All is told; a node that does not close takes nothing of it back."""
        try:
            self._wait("closed", CLOSE_S)
        except SiteLost as error:
            self._noted.append(str(error))

    def _demand_progress(self) -> None:
        """A node that hangs must not hang a run that is meant to end."""
        quiet_s = time.monotonic() - max(self._hurries_s, self._heard_s)
        if quiet_s > STUCK_S:
            late = ", ".join(f"'{name}'" for name in sorted(self._missing["stopped"]))
            what = f"site {late} did not come to the cut, and nothing went on for {STUCK_S:g} s"
            raise SiteLost(f"{what}; a node there may hang: `flowrl why` tells which")

    def _grant(self, firing_s: float) -> None:
        """Let sites go on; what no cut goes back to, learners' sites forget."""
        granted = self._leases.grant(firing_s)
        if granted is not None:
            leases = self._leases
            self.sites.say("grant", granted, *map(self._settled, (leases.final, leases.fired)))

    # what sites say

    def _listen(self) -> None:
        hearing: dict[str, Callable[..., None]] = {
            "ready": lambda name, state_bytes: self._leases.keep(state_bytes),
            "progress": self._on_progress,
            "hashed": lambda name, rows: self._retelling.add_hashed(rows),
            "states": self._on_states,
            "closed": self._on_closed,
            "reached": self._on_reached,
        }
        for name, (word, *values) in self.sites.heard():
            self._heard_s = time.monotonic()
            if word in hearing:
                hearing[word](name, *values)
            if word in self._missing:
                self._missing[word].discard(name)

    def _on_states(
        self, name: str, states: dict[str, State], dropped: int, irregularities: list[str]
    ) -> None:
        self._states |= states
        self._retelling.irregularities.dropped += dropped
        self._noted += irregularities

    def _on_closed(self, name: str, unclosed: list[str]) -> None:
        self._noted += unclosed

    def _on_reached(self, name: str, position: list[int], iters: int) -> None:
        """A learner that fires when it can has fired so often as was asked for."""
        self._cut_at(self._cut_for(name, tuple(position)), asked("train_iters", iters))

    def _on_progress(
        self, name: str, rounds: int, did: list[Any], told: list[Any], seen: list[Any]
    ) -> None:
        free = name in self._free
        self._leases.told(name, rounds)
        self.watched.told(name, seen)
        (self._ledger.add_settled if free else self._ledger.add)(did)
        for one in map(as_told, told):
            (self._retelling.tell if free else self._retelling.add)(one)
            if isinstance(one.record, VerdictRecord):
                at = self._cut_for(name, one.position)
                self._cut_at(at, ("verdict", one.record.reason))

    def _cut_for(self, name: str, position: Position) -> Position:
        """Where the others are cut: what a free site does is at no position of theirs."""
        return self.cuts.soon(self._leases.final) if name in self._free else position

    def _halt(self) -> None:
        """Once all others have stopped, so do the sites that fire when they can."""
        if self._free and not self._halting and self._missing["stopped"] <= self._free:
            self._halting = True
            self.sites.say("halt")

    def _settled(self, rounds: int) -> int:
        """Rounds that no cut goes back to, of those that have ended."""
        return rounds if self._stop is None else min(rounds, self._stop[0])

    def _tell(self) -> None:
        """Tell the run what no site can tell anything before."""
        final = self._leases.final
        self._retelling.tell_before(final, self._stop)
        self._ledger.settle(self._settled(final))

    # cuts

    def _look_for_cuts(self, firing_s: float) -> None:
        limits, fired = self.limits, self._leases.fired
        if limits.steps is not None and self.cuts.steps is None:  # then only counting tells
            reached = self._ledger.reached(limits.steps, fired)
            if reached is not None and fired > self.cuts.warm_rounds:
                at = max(reached, self.cuts.warm_rounds)
                self._cut_at((at,), asked("steps", limits.steps))
        if limits.time_s is not None and firing_s >= limits.time_s and self._asked is None:
            self._asked = ("time", f"{limits.time_s:g} s were asked for")
        if self._asked is not None:  # in the round of the slowest: what the others did is discarded
            self._cut_at(self.cuts.soon(fired), self._asked)
            self._hurries_s = min(self._hurries_s, time.monotonic())
            self._asked = None

    def _cut_at(self, cut: Position, why: Why) -> None:
        """Cut there, unless an earlier cut is known."""
        if self._stop is not None and not is_earlier(cut, why, self._stop, self._why):
            return
        self._stop, self._why = cut, why
        if not self._missing["ready"]:
            self.sites.say("stop", *cut)
