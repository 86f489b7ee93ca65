"""What the coordinator has told a site."""

from __future__ import annotations

from collections.abc import Callable

from flowrl.channels import ChannelLimits, SiteChannels
from flowrl.graph.site_layout import COORDINATOR
from flowrl.runtime.control.messages import DOWN
from flowrl.runtime.interruptions import SiteStopped
from flowrl.runtime.site_state import Position

CONTROL = ChannelLimits(tokens=1 << 16)


class CoordinatorMessages:
    """Taken in whenever mail comes, whatever the site does."""

    def __init__(self, channels: SiteChannels, name: str) -> None:
        self._down = channels.open_receiver(f"{DOWN}:{name}", COORDINATOR, limits=CONTROL)
        self.granted = 0  # rounds that may begin
        self.stop: Position | None = None  # where the run is cut, as far as is known
        self.halted = False  # what fires when it can ends after the firing that it is in
        self.wants_states = False
        self.leave = False  # at once, whatever is going on
        self.on_settled: Callable[[int, int], None] = lambda rounds, fired: None
        self.on_hash: Callable[[], None] = lambda: None
        channels.on_receive(self._hear)

    def _hear(self) -> None:
        while len(self._down):
            self._take(*self._down.take()[0])
        if self.leave:
            raise SiteStopped

    def _take(self, word: str, *values: int) -> None:
        if word == "grant":
            self.granted, *settled = values
            self.on_settled(*settled)
        elif word == "hash":
            self.on_hash()
        elif word == "stop":
            self.stop = tuple(values)
        elif word == "halt":
            self.halted = True
        elif word == "states":
            self.wants_states = True
        elif word == "leave":
            self.leave = True
