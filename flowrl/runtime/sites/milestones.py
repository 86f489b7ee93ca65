"""The milestones that all sites of a run reach, and how long the run waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from flowrl.runtime.control.messages import (
    PartsLoaded,
    Report,
    SiteAtCut,
    SiteClosed,
    SiteReady,
    SiteResults,
)
from flowrl.runtime.sites.site_failures import SiteFailed, SiteLost

Milestone = type[SiteReady | PartsLoaded | SiteAtCut | SiteResults | SiteClosed]
LATE: dict[Milestone, str] = {  # the error text for a site that does not reach a milestone
    SiteReady: "was not ready",
    PartsLoaded: "did not load its part of the snapshot",
    SiteAtCut: "did not reach the cut",
    SiteResults: "did not send its results",
    SiteClosed: "did not close its nodes",
}


class Milestones:
    """Which sites have not reached which milestones, and when the last report came; owned by the coordinator."""

    def __init__(self, sites: Iterable[str], clock: Callable[[], float] = time.monotonic) -> None:
        names = set(sites)
        self._pending = {milestone: set(names) for milestone in LATE}
        self._clock = clock
        self.last_report_s = 0.0

    def on_report(self, site: str, report: Report) -> None:
        """Note that a site has reported, and what it has reached if this report says so."""
        self.last_report_s = self._clock()
        for milestone, sites in self._pending.items():
            if isinstance(report, milestone):
                sites.discard(site)

    def pending(self, milestone: Milestone) -> set[str]:
        """Return the sites that have not reached a milestone."""
        return self._pending[milestone]

    def leave_out(self, site: str, milestones: Iterable[Milestone] = tuple(LATE)) -> None:
        """Wait no more for a site to reach these milestones."""
        for milestone in milestones:
            self._pending[milestone].discard(site)

    def wait_for(
        self,
        milestone: Milestone,
        timeout_s: float,
        receive_reports: Callable[[], object],
        counts_from_report: bool = False,
    ) -> None:
        """Receive reports until all sites have reached a milestone. Raise `SiteLost` if some are late.

        With `counts_from_report`, the time counts from the last report of any site. A site that is not ready in time
        would be late again, which is `SiteFailed`.
        """
        deadline = self._clock() + timeout_s
        while self._pending[milestone]:
            receive_reports()
            if counts_from_report:
                deadline = max(deadline, self.last_report_s + timeout_s)
            if self._clock() > deadline:
                late = ", ".join(sorted(self._pending[milestone]))
                kind = SiteFailed if milestone is SiteReady else SiteLost
                raise kind(f"site {late} {LATE[milestone]} within {timeout_s:g} s")
