"""What a site tells the coordinator: how far it is, what was done, what nodes recorded, where time went."""

from __future__ import annotations

import time
from typing import Any

from flowrl.channels import SiteChannels
from flowrl.core.state import Count
from flowrl.graph.site_layout import COORDINATOR
from flowrl.runtime.control.messages import UP, PositionedRecord, as_data
from flowrl.runtime.control.orders import CONTROL
from flowrl.runtime.remote.waiting import WAIT_S
from flowrl.runtime.scheduler import Scheduler
from flowrl.runtime.site_state import Position
from flowrl.runtime.status import read_status
from flowrl.runtime.token_hashing import TokenHash

EVERY_S = 0.05  # how often a site tells how far it is
EACH_S = 0.001  # for each site: the coordinator hears of so many, one after the other


class SiteReporter:
    """What has happened since the coordinator was last told."""

    def __init__(self, channels: SiteChannels, name: str, sites: int) -> None:
        self.channels = channels
        self._up = channels.open_sender(f"{UP}:{name}", COORDINATOR, limits=CONTROL)
        self._every_s = max(EVERY_S, EACH_S * sites)
        self._told: list[PositionedRecord] = []
        self._pending_count: list[
            list[Any]
        ] = []  # what collectors and the first learner did, and where
        self.hashed: list[TokenHash] = []
        self._last_s = 0.0
        self._rounds = -1  # that were told last

    def say(self, *words: Any) -> None:
        """Tell the coordinator something."""
        self.channels.wait(self._up, WAIT_S)
        self._up.send(list(words))
        self.channels.flush()

    def recorded(self, told: PositionedRecord) -> None:
        """A node has recorded something."""
        self._told.append(told)

    def counted(self, position: Position, count: Count) -> None:
        """A node has counted something."""
        self._pending_count.append([list(position), list(count)])

    def tell_now_and_then(self, walk: Scheduler) -> None:
        """How things are, if that was told some time ago."""
        if time.perf_counter() - self._last_s > self._every_s:
            self.tell(walk)

    def tell_rounds(self, walk: Scheduler) -> None:
        """How far it is, if that is news: others may wait for it."""
        if walk.site.rounds != self._rounds or self._told or self._pending_count or self.hashed:
            self.tell(walk)

    def tell(self, walk: Scheduler) -> None:
        """How things are."""
        self.channels.wait(self._up, WAIT_S)  # where it is told to stop, it still has all to tell
        told, self._told = self._told, []
        did, self._pending_count = self._pending_count, []
        if self.hashed:
            hashed, self.hashed[:] = [[list(h.position), *h[1:]] for h in self.hashed], []
            self.say("hashed", hashed)
        seen = read_status(walk).as_data()
        self._rounds = walk.site.rounds
        self.say("progress", self._rounds, did, [as_data(t) for t in told], seen)
        self._last_s = time.perf_counter()
