"""Reports the status of a site in another process while a long firing or wait keeps the site from reporting.

A thread reads the scheduler's state twice a second. If the current activity has lasted for some time, the thread sends
the status to the coordinator through a socket of its own. A firing that holds Python's global lock stops the beacon as
well; then the coordinator only knows how old the last status is.
"""

from __future__ import annotations

import json
import threading

from flowrl.channels.site_connections import SiteConnections
from flowrl.graph.site_layout import COORDINATOR
from flowrl.runtime.sites.site import SiteScheduler
from flowrl.runtime.status import SITE_STATUS
from flowrl.runtime.status_reader import read_status

PERIOD_S = 0.5
LONG_S = 0.3  # the site itself reports after shorter activities


class StatusBeacon:
    """The beacon of one site process."""

    def __init__(self, connections: SiteConnections, coordinator: str) -> None:
        """The beacon owns `connections`, which have the site's name. `coordinator` is an address."""
        self._connections = connections
        connections.connect(COORDINATOR, coordinator)
        self._scheduler: SiteScheduler | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beacon", daemon=True)

    def start(self, scheduler: SiteScheduler) -> None:
        self._scheduler = scheduler
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(PERIOD_S):
            assert self._scheduler is not None
            status = read_status(self._scheduler, self._scheduler.name)
            if status.activity.for_s >= LONG_S:
                self._connections.send_out_of_band(
                    COORDINATOR, json.dumps(SITE_STATUS.encode(status))
                )
                self._connections.flush()

    def close(self) -> None:
        self._closed.set()
        if self._scheduler is not None:
            self._thread.join()
        self._connections.close(drop=True)
