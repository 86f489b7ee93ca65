"""Starts elastic sites again that were lost, while the other sites of the run go on.

`flowrl.checks.site_kinds` says which sites are elastic. A lost one is started again after a while, in a new epoch
and at a new address. Its peers connect to it, and lose what was on its way. When it is ready and all peers have
answered, it takes part again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flowrl.checks.firing_counts import schedule_of_round
from flowrl.checks.serial_program import SerialProgram
from flowrl.core.context import instance_key
from flowrl.core.state import Count
from flowrl.core.wording import count_text
from flowrl.runtime.control.messages import InstanceProgress, PeerReplaced, SiteProgress
from flowrl.runtime.sites.launched_sites import LaunchedSites
from flowrl.runtime.sites.site_failures import SiteLost

# Before each restart of a site that is lost again and again. Then the run gives up.
WAITS_S = (0.0, 1.0, 4.0, 10.0)
STEADY_S = 60.0  # a site that has taken part for so long counts as if it had never been lost
HOST_S = 0.5  # between looks for a host
READY_S = 300.0  # in which a site must be ready: imports and simulators may take long


@dataclass(slots=True)
class ElasticSite:
    """What is known of an elastic site that was lost, or has been lost before."""

    losses: int = 0  # since it was steady
    all_losses: int = 0
    why: str = ""  # it was lost last
    due_s: float = 0.0  # when it is started again
    joined_s: float = 0.0  # when it took part again; 0 while it does not
    is_started: bool = False
    is_ready: bool = False
    host_missed_s: float = (
        0.0  # since when there is no host on which it can be started; 0 if there is one
    )
    peers: set[str] = field(default_factory=set)  # that have not replaced it yet
    lost_tokens: int = 0
    is_new: bool = False  # it has never taken part, so nothing was lost with it
    joined_from: str = ""  # the host with which it joined, if it was not there from the beginning
    can_be_missed: bool = False  # the run does not wait for a host on which it can be started


class SiteRestarts:
    """The elastic sites of a run that were lost, and how far their instances had come; owned by the coordinator."""

    def __init__(
        self,
        sites: LaunchedSites,
        show: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`show` shows a line to the user."""
        self._sites, self._show, self._clock = sites, show, clock
        self._known: dict[str, ElasticSite] = {}
        self._left_out: set[str] = set()

    @property
    def absent(self) -> set[str]:
        """The sites that were lost, and shall take part again."""
        return self.away - self._left_out

    @property
    def away(self) -> set[str]:
        """The sites that do not take part, also those that never shall again."""
        return {site for site, known in self._known.items() if not known.joined_s}

    def expect(self, site: str, is_there: bool) -> None:
        """Have a site that the run can miss. If it is not there yet, it is started when there is a host for it."""
        joined_s = self._clock() if is_there else 0.0
        self._known[site] = ElasticSite(can_be_missed=True, is_new=not is_there, joined_s=joined_s)

    def lose(self, site: str, why: str) -> None:
        """Plan the restart of a lost site. Raise `SiteLost` if it is lost again and again."""
        known, now_s = self._known.setdefault(site, ElasticSite()), self._clock()
        if known.joined_s and now_s - known.joined_s >= STEADY_S:
            known.losses = 0
        known.losses += 1
        known.all_losses += 1
        known.why, known.joined_s, known.is_started, known.is_ready = why, 0.0, False, False
        if known.losses > len(WAITS_S):
            times = count_text(known.losses, "time")
            raise SiteLost(f"site '{site}' has ended: {why}; it was lost {times} in a row")
        wait_s = WAITS_S[known.losses - 1]
        known.due_s = now_s + wait_s
        when = f" in {wait_s:g} s" if wait_s else ""
        self._show(f"site '{site}' was lost: {why}; it is started again{when}, and the run goes on")
        for other in self._known.values():
            other.peers.discard(site)

    def leave_out(self, site: str, why: str = "") -> None:
        """Start a lost site no more: the run ends."""
        if why:
            known = self._known.setdefault(site, ElasticSite())
            known.why, known.all_losses = why, known.all_losses + 1
        if site in self._known:
            self._known[site].joined_s = 0.0
        self._left_out.add(site)

    def start_due(self) -> None:
        """Start the sites whose time has come."""
        now_s, absent = self._clock(), self.absent
        for site in [site for site in self._known if site in absent]:
            known = self._known[site]
            if known.is_started:
                if not known.is_ready and now_s > known.due_s + READY_S:
                    why = f"it was not ready within {READY_S:g} s"
                    self._sites.lose(site, why)
                    self.lose(site, why)
            elif now_s >= known.due_s:
                self._start(site, known)

    def _start(self, site: str, known: ElasticSite) -> None:
        peers = self._sites.start_again(site)
        if peers is None:
            known.due_s = self._clock() + HOST_S
            if not known.host_missed_s and not known.is_new:
                known.host_missed_s = self._clock()
                self._show(f"site '{site}' waits for a host that joins, and the run goes on")
            return
        known.host_missed_s = 0.0
        known.is_started, known.due_s, known.peers = True, self._clock(), set(peers)

    def on_ready(self, site: str) -> None:
        if site in self._known:
            self._known[site].is_ready = True

    def on_peer_replaced(self, site: str, report: PeerReplaced) -> None:
        known = self._known[report.peer]
        known.lost_tokens += report.lost_tokens
        if report.epoch == self._sites.epoch(report.peer):
            known.peers.discard(site)

    def take_returning(self) -> list[str]:
        """Return the sites that take part again from now on."""
        absent = [(site, self._known[site]) for site in sorted(self.absent)]
        returning = [
            s for s, known in absent if known.is_started and known.is_ready and not known.peers
        ]
        for site in returning:
            known = self._known[site]
            known.joined_s = self._clock()
            self._show(f"site '{site}' takes part{'' if known.is_new else ' again'}")
            if known.is_new:
                known.is_new, known.lost_tokens = False, 0
                known.joined_from = self._sites.layout.host(site)
        return returning

    def require_host_within(self, patience_s: float) -> None:
        """Raise `SiteLost` if a site has waited longer for a host. Called while nothing goes on without it."""
        for site in sorted(self.absent):
            known = self._known[site]
            missed_s = 0.0 if known.can_be_missed else known.host_missed_s
            if missed_s and self._clock() - missed_s > patience_s:
                why = f"site '{site}' was lost: {known.why}"
                raise SiteLost(f"{why}; no host has joined for it within {patience_s:g} s")

    def lines(self) -> list[str]:
        """Return what has come and gone in words, for the summary of the run."""
        return [*self._arrivals(), *self._losses()]

    def _arrivals(self) -> list[str]:
        joined = [
            (site, known.joined_from) for site, known in self._known.items() if known.joined_from
        ]
        missing = [f"'{site}'" for site, known in self._known.items() if known.is_new]
        lines = [
            f"site '{site}' joined while the run went on, on host '{host}'" for site, host in joined
        ]
        if missing:
            whose = "it" if len(missing) == 1 else "them"
            lines.append(
                f"no host was there for {', '.join(missing)}, and the run did without {whose}"
            )
        return lines

    def _losses(self) -> list[str]:
        return [
            f"site '{site}' was lost {count_text(known.all_losses, 'time')}, while the run went on (last: {known.why})"
            + (
                f"; {count_text(known.lost_tokens, 'token')} to it were lost"
                if known.lost_tokens
                else ""
            )
            for site, known in self._known.items()
            if known.all_losses
        ]


class ElasticProgress:
    """How far the instances of elastic sites have come, so that those of a restarted site go on counting from there."""

    def __init__(self, program: SerialProgram) -> None:
        self._program = program
        self._counts: dict[str, dict[str, Count]] = {}  # by site and instance
        self._fired: dict[str, dict[str, int]] = {}

    def add(self, site: str, progress: SiteProgress) -> None:
        """Add what a site has reported."""
        counts = self._counts.setdefault(site, {})
        for position, count in progress.counts:
            name = schedule_of_round(self._program, position[0]).order[position[1]]
            key = instance_key(name, position[2])
            counts[key] = Count(*map(sum, zip(counts.get(key, Count()), count, strict=True)))
        self._fired[site] = {n.instance: n.fired for n in progress.status.nodes if not n.is_service}

    def of_site(self, site: str) -> dict[str, InstanceProgress]:
        """Return the progress of the instances of a site, by their keys."""
        counts = self._counts.get(site, {})
        return {
            key: InstanceProgress(fired, counts.get(key, Count()))
            for key, fired in self._fired.get(site, {}).items()
        }
