"""Reports the status of a site in another process while a long firing or wait keeps the site from reporting.

A thread reads the scheduler's state twice a second. If the current activity has lasted for some time, the thread sends
the status to the coordinator through a socket of its own; and it gives a sign of life each few seconds. A firing that
holds Python's global lock stops the beacon as well; then the coordinator only knows how old the last status is.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback

from flowrl.channels.site_connections import SiteConnections
from flowrl.graph.site_layout import COORDINATOR
from flowrl.runtime.sites.site import SiteScheduler
from flowrl.runtime.status import SITE_STATUS
from flowrl.runtime.status_reader import read_status

PERIOD_S = 0.5
LONG_S = 0.3  # the site itself reports after shorter activities
ALIVE_S = 5.0  # between signs of life
SIGN_OF_LIFE = ""  # instead of a status


class StatusBeacon:
    """The beacon of one site process."""

    def __init__(self, connections: SiteConnections, coordinator: str) -> None:
        """The beacon owns `connections`, which have the site's name. `coordinator` is an address."""
        self._connections = connections
        connections.connect(COORDINATOR, coordinator)
        self._scheduler: SiteScheduler | None = None
        self._closed = threading.Event()
        self._sent_s = 0.0
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="beacon", daemon=True)

    def start(self, scheduler: SiteScheduler) -> None:
        self._scheduler = scheduler
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(PERIOD_S):
            text = self._status_if_long()
            if text != SIGN_OF_LIFE or time.monotonic() - self._sent_s >= ALIVE_S:
                self._sent_s = time.monotonic()
                self._connections.send_out_of_band(COORDINATOR, text)
                self._connections.flush()

    def _status_if_long(self) -> str:
        """Return the status if the current activity is long; otherwise, and if reading fails, the sign of life.

        Reading takes no lock, so it can fail while the site's thread changes what is read. Then it is read again after
        the next period. The first such error is printed.
        """
        assert self._scheduler is not None
        try:
            status = read_status(self._scheduler, self._scheduler.name)
            if status.activity.for_s < LONG_S:
                return SIGN_OF_LIFE
            return json.dumps(SITE_STATUS.encode(status))
        except Exception:
            if not self._has_failed:
                self._has_failed = True
                what = "the status could not be read, and will be read again"
                print(f"site '{self._scheduler.name}': {what}", file=sys.stderr)
                traceback.print_exc()
            return SIGN_OF_LIFE

    def close(self) -> None:
        self._closed.set()
        if self._scheduler is not None:
            self._thread.join()
        self._connections.close(drop=True)
