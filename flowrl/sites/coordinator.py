"""The coordinator: grants rounds, collects what sites tell, and cuts.

It sees no token. What sites tell is put back into the order of the program, and told to the run once no site can
tell anything before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flowrl.checks.check import Checked
from flowrl.context import Verdict
from flowrl.engine.engine import Account, Cut, Reason, Sink, digest_of
from flowrl.graph import Limits
from flowrl.sites.cuts import Cuts, Stop, Why
from flowrl.sites.launch import SiteLost, Sites
from flowrl.sites.layout import Layout
from flowrl.sites.words import Told, as_told
from flowrl.state import Count, State

LEASE_S = 0.5  # of work that sites may be ahead of the slowest
LEAST_LEASE = 8  # rounds
START_S = 300.0  # in which every site must be ready: imports and simulators take their time
STATES_S = 60.0


class Coordinator:
    """Runs a sound graph on several sites; the same to a run as the engine of one."""

    def __init__(
        self, checked: Checked, sink: Sink, layout: Layout, seed: int, limits: Limits
    ) -> None:
        self.checked, self.sink = checked.demand(), sink
        self.limits = limits
        self.cuts = Cuts(checked, limits)
        self.sites = Sites(checked, layout, seed)
        names = self.sites.names
        self._missing = {word: set(names) for word in ("ready", "stopped", "states")}
        self._rounds = dict.fromkeys(names, 0)  # whole rounds of each site
        self._granted = 0  # rounds that sites may begin
        self._did: dict[int, dict[str, Count]] = {}  # after so many rounds: what collectors did
        self._told: list[Told] = []
        self._accounts: dict[str, Account] = {}
        self._states: dict[str, State] = {}
        self._happened: list[str] = []
        self._stop: Stop | None = None
        self._why: Why = ("done", "")
        self._verdict: Told | None = None  # the one that ends the run
        self._asked: Why | None = None

    # what a run asks

    @property
    def done(self) -> Count:
        """What has been done where the run is cut, or so far."""
        stop = None if self._missing["stopped"] else self._stop
        rounds = self._final if stop is None else stop.round
        did = dict(self._did.get(rounds, {}))
        if stop is not None:
            order = self.cuts.order
            for key, count in self._did.get(rounds + 1, {}).items():
                if order.index(key.partition("#")[0]) < stop.slot:
                    did[key] = count
        steps, episodes = (sum(c[i] for c in did.values()) for i in (0, 1))
        return Count(steps, episodes, self.cuts.iterations(rounds, stop))

    def accounts(self) -> list[Account]:
        """Each instance, its firings and its time, in the order of the graph."""
        place = {name: at for at, name in enumerate(self.checked.graph.nodes)}
        found = list(self._accounts.values())
        return sorted(found, key=lambda account: place[account.key.partition("#")[0]])

    def weights(self) -> dict[str, State]:
        """The learners' states at the cut, by `learner.port`."""
        return self._states

    def digest(self) -> str:
        """The SHA-256 over the learners' weights, sorted by name."""
        return digest_of(self._states)

    def happened_lines(self) -> list[str]:
        """What made this run differ from a deterministic one, and what would not close."""
        return self._happened

    def stop(self, reason: Reason = "interrupt", why: str = "interrupted") -> None:
        """Cut soon (from another thread, or a signal)."""
        self._asked = (reason, why)

    def close(self) -> None:
        """End every site, in bounded time."""
        self.sites.close()

    # a run

    def run(self) -> Cut:
        """Start the sites, and let them work up to the earliest cut."""
        for stop, why in self.cuts.known():
            self._cut_at(stop, why)
        self.sites.start()
        self._wait("ready", START_S)
        if self._stop is not None:
            self.sites.say("stop", *self._stop)
        began = time.perf_counter()
        while self._missing["stopped"]:
            self._grant(time.perf_counter() - began)
            self._listen()
            self._tell(self._final)
            self._look_for_cuts(time.perf_counter() - began)
        self._tell(None)
        self.sites.say("states")
        self._wait("states", STATES_S)
        assert self._stop is not None
        return Cut(*self._why, self._stop.round - self.cuts.warm_rounds, self.done)

    def _wait(self, word: str, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s
        while self._missing[word]:
            self._listen()
            if time.monotonic() > deadline:
                late = ", ".join(sorted(self._missing[word]))
                raise SiteLost(f"site {late}: no '{word}' came in {deadline_s:g} s")

    def _grant(self, firing_s: float) -> None:
        """Let sites go on, about as far as they get while this is noticed."""
        lease = max(LEAST_LEASE, int(self._final / max(firing_s, 1e-9) * LEASE_S))
        if self._counts_steps and self._final >= self.cuts.warm_rounds:
            lease = 1  # where the cut falls is known only at each round's end
        if self._final + lease > self._granted:
            self._granted = self._final + lease
            self.sites.say("grant", self._granted, self._settled)

    # what sites say

    def _listen(self) -> None:
        hearing: dict[str, Callable[..., None]] = {
            "progress": self._on_progress,
            "states": self._on_states,
        }
        for name, (word, *values) in self.sites.heard():
            if word in hearing:
                hearing[word](name, *values)
            if word in self._missing:
                self._missing[word].discard(name)

    def _on_states(self, name: str, states: dict[str, State], happened: list[str]) -> None:
        self._states |= states
        self._happened += happened

    def _on_progress(
        self, name: str, rounds: int, did: list[Any], told: list[Any], busy: dict[str, Any]
    ) -> None:
        self._rounds[name] = rounds
        for at, counts in did:
            found = {key: Count(*count) for key, count in counts.items()}
            self._did.setdefault(at, {}).update(found)
        for key, (fired, busy_s) in busy.items():
            self._accounts[key] = Account(key, fired, busy_s)
        for one in map(as_told, told):
            self._told.append(one)
            if isinstance(one.record, Verdict):
                self._on_verdict(one, one.record.reason)

    def _on_verdict(self, told: Told, reason: str) -> None:
        rounds, slot, _, firing = told.position[:4]
        earlier = self._verdict is None or told.position < self._verdict.position
        if earlier and self._cut_at(Stop(rounds, slot, firing + 1), ("verdict", reason)):
            self._verdict = told

    @property
    def _final(self) -> int:
        """Rounds that all sites have ended."""
        return min(self._rounds.values(), default=0)

    @property
    def _settled(self) -> int:
        """Rounds that no cut goes back to."""
        return self._final if self._stop is None else min(self._final, self._stop.round)

    def _tell(self, final: int | None) -> None:
        """Tell the run what no site can tell anything before; at the end, all up to the cut."""
        now = [t for t in self._told if final is None or t.position[0] < final]
        if now:
            self._told = [t for t in self._told if final is not None and t.position[0] >= final]
            for told in sorted(now, key=lambda t: t.position):
                if self._counts(told):
                    self.sink.record(told.teller, told.record)
        for rounds in [r for r in self._did if r < self._settled - 1]:
            del self._did[rounds]

    def _counts(self, told: Told) -> bool:
        """Whether a record comes before the cut."""
        if self._verdict is not None and told.position > self._verdict.position:
            return False
        return self._stop is None or self._stop.includes(told.position)

    # cuts

    @property
    def _counts_steps(self) -> bool:
        """Whether only counting tells when `--steps` are reached."""
        return self.limits.steps is not None and self.cuts.steps is None

    def _look_for_cuts(self, firing_s: float) -> None:
        limits, final = self.limits, self._final
        if self._counts_steps and final > self.cuts.warm_rounds:
            done = sum(count.env_steps for count in self._did.get(final, {}).values())
            if limits.steps is not None and done >= limits.steps:
                what = f"{limits.steps} env steps were asked for"
                self._cut_at(self.cuts.end(final - 1), ("steps", what))
        if limits.time_s is not None and firing_s >= limits.time_s and self._asked is None:
            self._asked = ("time", f"{limits.time_s:g} s were asked for")
        if self._asked is not None:
            self._cut_at(self.cuts.soon(self._granted), self._asked)
            self._asked = None

    def _cut_at(self, stop: Stop, why: Why) -> bool:
        """Cut there, unless an earlier cut is known; whether it will be there."""
        at_once = (
            why[0] == "verdict" and stop == self._stop
        )  # a verdict comes before the next firing
        if self._stop is not None and self._stop <= stop and not at_once:
            return False
        self._stop, self._why = stop, why
        if not self._missing["ready"]:
            self.sites.say("stop", *stop)
        return True
