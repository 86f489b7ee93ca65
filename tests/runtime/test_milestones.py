"""How long a run waits for the milestones of its sites."""

from __future__ import annotations

import pytest

from flowrl.runtime.control.messages import SavedParts, SiteResults
from flowrl.runtime.sites.coordinator import RESULTS_S
from flowrl.runtime.sites.milestones import Milestones
from flowrl.runtime.sites.site_failures import SiteLost


def test_results_are_awaited_as_long_as_reports_arrive() -> None:
    """The parts of a snapshot with a large buffer may take longer to arrive than `RESULTS_S`."""
    now, limit = 1000.0, RESULTS_S
    arrivals = [0.9 * limit, 1.8 * limit, 2.7 * limit]  # of reports, since the beginning
    milestones = Milestones(["main"], lambda: now)

    def receive() -> None:
        nonlocal now
        now += 0.1 * limit
        if any(abs(now - 1000.0 - at) < 1e-6 for at in arrivals):
            milestones.on_report("main", SavedParts(1, {}))
        if now > 1000.0 + 3.3 * limit:
            milestones.on_report("main", SiteResults({}, (), 0, (), ()))

    milestones.wait_for(SiteResults, limit, receive, counts_from_report=True)
    assert not milestones.pending(SiteResults)
    now, arrivals = 1000.0 - 5 * limit, []
    late = Milestones(["main"], lambda: now)
    with pytest.raises(SiteLost, match="site main did not send its results"):
        late.wait_for(SiteResults, limit, receive, counts_from_report=True)
