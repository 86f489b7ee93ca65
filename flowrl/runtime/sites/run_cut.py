"""Decides where a run on several sites is cut.

Some cuts are known before the run (`control.cuts`). Others are found while it goes on: when a node gives a verdict,
when counted env steps or train iterations reach a limit, when the time is over, and on request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from math import inf

from flowrl.runtime.control.count_ledger import CountLedger
from flowrl.runtime.control.cuts import CutPlanner, completed_at, is_earlier
from flowrl.runtime.control.leases import Leases
from flowrl.runtime.control.messages import CutAt, HoldRounds
from flowrl.runtime.executor import CutReason, limit_reached
from flowrl.runtime.site_state import Position
from flowrl.runtime.sites.launched_sites import LaunchedSites


class RunCut:
    """The earliest known cut of a run, and a requested one that is not chosen yet; owned by the coordinator.

    A requested cut falls in the newest round that any site has begun, which the sites are asked for: so no site has to
    keep states of earlier rounds for it, and no firing in rounds is discarded.
    """

    def __init__(
        self,
        planner: CutPlanner,
        leases: Leases,
        ledger: CountLedger,
        sites: LaunchedSites,
        may_miss_firings: bool,
        before_requested: Callable[[int], None],
    ) -> None:
        """`may_miss_firings` says whether sites can be lost and started again, so that their env steps are counted.

        `before_requested` is called with the number of completed rounds at a requested cut, before sites are told.
        """
        self._planner, self._leases, self._ledger, self._sites = planner, leases, ledger, sites
        self._before_requested = before_requested
        self.position: Position | None = None  # None: no cut is known
        self.why: CutReason = ("done", "")
        self._is_announced = False  # whether sites are told each earlier cut
        self._request: CutReason | None = None  # for a cut that is not chosen yet
        self.requested_s = inf  # when sites were asked for a requested cut
        self.sites_to_hold: set[str] = set()  # those that were asked and have not answered
        self._newest_round = 0
        for cut, why in planner.known_cuts(may_miss_firings):
            self.cut_at(cut, why)
        steps = planner.limits.steps
        if may_miss_firings and steps is not None and planner.known_steps:
            leases.last_round = planner.round_of(steps)

    def announce(self) -> None:
        """Tell sites the cut if it is known, and each earlier one from now on. All of them are ready."""
        self._is_announced = True
        if self.position is not None:
            self._sites.send(CutAt(self.position))

    def announce_to(self, site: str) -> None:
        """Tell a site the cut if it is known."""
        if self.position is not None:
            self._sites.send_to(site, CutAt(self.position))

    def cut_at(self, position: Position, why: CutReason) -> None:
        """Cut at this position, unless an earlier cut is known."""
        if self.position is not None and not is_earlier(position, why, self.position, self.why):
            return
        self.position, self.why = position, why
        if self._is_announced:
            self._sites.send(CutAt(position))

    def settled(self, rounds: int) -> int:
        """Return how many of these completed rounds no cut can fall before."""
        return rounds if self.position is None else min(rounds, completed_at(self.position))

    # limits that are reached while the run goes on

    def find(self, firing_s: float, present: Collection[str]) -> None:
        """Look for cuts that are known now. `firing_s` is the time since the first firing.

        `present` are the sites that take part: those are asked where a requested cut can fall.
        """
        self._find_cut_of_missing_steps()
        self._find_cut_of_counted_steps()
        time_s = self._planner.limits.time_s
        if time_s is not None and firing_s >= time_s and not self.was_requested:
            self.request(limit_reached("time", time_s))
        if self._request is not None:
            self._choose_requested(self._request, present)

    def _find_cut_of_missing_steps(self) -> None:
        """Cut after the last round of the leases if it brings the env steps; otherwise allow more rounds."""
        last_round, steps = self._leases.last_round, self._planner.limits.steps
        if self._leases.completed_rounds <= last_round:
            return
        assert steps is not None
        assert self._planner.known_steps is not None
        missing = steps - self._ledger.counts_at((int(last_round),)).env_steps
        if missing > 0:
            self._leases.last_round += -(-missing // self._planner.known_steps[1])
        else:
            self.cut_at((int(last_round),), limit_reached("steps", steps))

    def _find_cut_of_counted_steps(self) -> None:
        """Cut after the round in which the env steps were reached, if their number in a round is not known."""
        steps, fired = self._planner.limits.steps, self._leases.fired_rounds
        if steps is None or self._planner.known_steps is not None:
            return
        reached, warm_up_rounds = self._ledger.round_of(steps, fired), self._planner.warm_up_rounds
        if reached is not None and fired > warm_up_rounds:
            self.cut_at((max(reached, warm_up_rounds),), limit_reached("steps", steps))

    # requests

    def request(self, why: CutReason) -> None:
        """Ask for a cut at the next possible position. Any thread may call this."""
        self._request = why

    @property
    def has_request(self) -> bool:
        """Whether a cut was requested that is not chosen yet."""
        return self._request is not None

    @property
    def was_requested(self) -> bool:
        """Whether the sites were asked where a requested cut can fall."""
        return self.requested_s < inf

    def begin_after(self, rounds: int) -> None:
        """Begin with these rounds, in a run that continues."""
        self._newest_round = rounds

    def on_rounds_held(self, site: str, begun: int | None) -> None:
        """Take the answer of a site: how many rounds it has begun; None if it fires in no common rounds."""
        self.sites_to_hold.discard(site)
        if begun is not None:
            self._newest_round = max(self._newest_round, begun - 1)

    def leave_out(self, site: str) -> None:
        """Wait for no answer of a site, because it was lost."""
        self.sites_to_hold.discard(site)

    def _choose_requested(self, why: CutReason, present: Collection[str]) -> None:
        """Ask the sites how many rounds they have begun; when all have answered, cut at the end of the newest one."""
        if not self.was_requested:
            self.requested_s = time.monotonic()
            self.sites_to_hold = set(present)
            self._sites.send(HoldRounds())
        elif not self.sites_to_hold:
            self._before_requested(self._newest_round + 1)
            self.cut_at((self._newest_round,), why)
            self._request = None
            self.announce()  # an earlier cut is told again, which ends the hold
