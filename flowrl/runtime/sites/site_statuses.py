"""The latest status of each site: as the site reported it, or read directly from the schedulers of this process."""

from __future__ import annotations

import json
import time
from dataclasses import replace

from flowrl.channels.errors import RefusedMessage
from flowrl.core.plain_data import MalformedDataError
from flowrl.runtime.sites.launched_sites import LaunchedSites
from flowrl.runtime.status import SITE_STATUS, Activity, NodeStats, SiteStatus
from flowrl.runtime.status_reader import read_status


class SiteStatuses:
    """Sites report with their progress, and their beacons report out of band while they are busy for long."""

    def __init__(self, sites: LaunchedSites) -> None:
        self._sites = sites
        self._reported: dict[str, tuple[SiteStatus, float]] = {}  # and when
        sites.on_out_of_band(self._update_out_of_band)

    def update(self, status: SiteStatus) -> None:
        """A site has reported."""
        self._reported[status.site] = (status, time.perf_counter())

    def _update_out_of_band(self, site: str, text: str) -> None:
        try:
            status = SITE_STATUS.decode(json.loads(text))
        except (ValueError, MalformedDataError):
            raise RefusedMessage("malformed status") from None
        if status.site != site:
            raise RefusedMessage("status of another site")
        known = self._reported.get(site)
        if known is None or status.fired >= known[0].fired:  # a report may have overtaken it
            self.update(status)

    def current(self) -> list[SiteStatus]:
        """Every site as it is now, or as it was last reported; may be called from any thread."""
        return [self._current(site) for site in self._sites.names]

    def _current(self, site: str) -> SiteStatus:
        scheduler, reported = self._sites.schedulers.get(site), self._reported.get(site)
        if scheduler is not None:
            return read_status(scheduler, site)
        if reported is None:
            return SiteStatus(site, Activity("starting"))
        status, then_s = reported
        age_s = time.perf_counter() - then_s
        # as far as is known, the site still does what it did then
        activity = replace(status.activity, for_s=status.activity.for_s + age_s)
        return replace(status, activity=activity, age_s=age_s)

    def node_stats(self) -> list[NodeStats]:
        """All instances, as last reported."""
        return [node for status, _ in list(self._reported.values()) for node in status.nodes]

    def idle_s(self) -> dict[str, float]:
        """How long each site waited for a lease, as last reported."""
        return {site: status.idle_s for site, (status, _) in list(self._reported.items())}
