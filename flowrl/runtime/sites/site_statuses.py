"""The latest status of each site: as the site has reported it, or read from a scheduler of this process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

from flowrl.channels.errors import RefusedMessage
from flowrl.core.plain_data import MalformedDataError
from flowrl.runtime.sites.launched_sites import LaunchedSites
from flowrl.runtime.sites.status_beacon import SIGN_OF_LIFE
from flowrl.runtime.status import SITE_STATUS, Activity, NodeStats, SiteStatus
from flowrl.runtime.status_reader import read_status


class SiteStatuses:
    """Statuses that sites report with their progress, and that their beacons report while the sites are busy."""

    def __init__(self, sites: LaunchedSites, on_sign_of_life: Callable[[str], None]) -> None:
        """`on_sign_of_life` is called with each site that reports."""
        self._sites, self._on_sign_of_life = sites, on_sign_of_life
        self._reported: dict[str, tuple[SiteStatus, float]] = {}  # with the time of the report
        sites.on_out_of_band(self._update_out_of_band)

    def update(self, status: SiteStatus) -> None:
        self._reported[status.site] = (status, time.perf_counter())
        self._on_sign_of_life(status.site)

    def update_activity(self, site: str, activity: Activity) -> None:
        """Update the activity alone. The statistics of a site that is started again stay."""
        known = self._reported.get(site)
        self.update(
            SiteStatus(site, activity) if known is None else replace(known[0], activity=activity)
        )

    def _update_out_of_band(self, site: str, text: str) -> None:
        self._on_sign_of_life(site)
        if text == SIGN_OF_LIFE:
            return
        try:
            status = SITE_STATUS.decode(json.loads(text))
        except (ValueError, MalformedDataError):
            raise RefusedMessage("malformed status") from None
        if status.site != site:
            raise RefusedMessage("status of another site")
        known = self._reported.get(site)
        if known is None or status.fired >= known[0].fired:  # a report may be newer
            self.update(status)

    def current(self) -> list[SiteStatus]:
        """Return the status of every site that has been started, now or as last reported. Any thread may call this."""
        return [self._current(site) for site in self._sites.names if self._sites.is_started(site)]

    def _current(self, site: str) -> SiteStatus:
        scheduler, reported = self._sites.schedulers.get(site), self._reported.get(site)
        if scheduler is not None:
            return read_status(scheduler, site)
        if reported is None:
            return SiteStatus(site, Activity("starting"))
        status, reported_s = reported
        age_s = time.perf_counter() - reported_s
        # The site may still be in the same activity.
        activity = replace(status.activity, for_s=status.activity.for_s + age_s)
        return replace(status, activity=activity, age_s=age_s)

    def node_stats(self) -> list[NodeStats]:
        """Return the statistics of all instances, as last reported."""
        return [node for status, _ in list(self._reported.values()) for node in status.nodes]

    def idle_s(self) -> dict[str, float]:
        """Return how long each site waited for leases, as last reported."""
        return {site: status.idle_s for site, (status, _) in list(self._reported.items())}
