"""A beacon: shows what a site in a process of its own does while it fires or waits for long, and could not answer.

A thread looks at the site's walk twice a second and tells the coordinator, through a socket of its own, what went on
for longer than that. A firing that lets no other Python run silences it, and that can be seen too.
"""

from __future__ import annotations

import json
import threading

from flowrl.channels.site_connections import SiteConnections
from flowrl.graph.site_layout import COORDINATOR
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.status import read_status

BEAT_S = 0.5
LONG_S = 0.3  # what goes on for less is told by the site itself


class StatusBeacon:
    """One for each process."""

    def __init__(self, connections: SiteConnections, coordinator: str) -> None:
        """`mailbox`: of the site's name, owned by the beacon; `coordinator`: its address."""
        self._connections = connections
        connections.connect(COORDINATOR, coordinator)
        self._walk: Scheduler | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._shine, name="beacon", daemon=True)

    def watch(self, walk: Scheduler) -> None:
        """Begin: this is the site's walk."""
        self._walk = walk
        self._thread.start()

    def _shine(self) -> None:
        while not self._over.wait(BEAT_S):
            assert self._walk is not None
            glance = read_status(self._walk)
            if glance.doing.for_s >= LONG_S:
                self._connections.send_out_of_band(COORDINATOR, json.dumps(glance.as_data()))
                self._connections.flush()

    def close(self) -> None:
        """End with the site."""
        self._over.set()
        if self._walk is not None:
            self._thread.join()
        self._connections.close(drop=True)
