"""How an instance here sees the state of a node that lives on another site."""

from __future__ import annotations

from collections import deque

from flowrl.core.state import State
from flowrl.runtime.instance import SiteState
from flowrl.runtime.remote.edges import RemoteInput
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.streams import Token, nothing


class RoundEndView:
    """The versions of a state that lives elsewhere, as the rounds there ended with them."""

    def __init__(
        self, waiting: SiteWaits, site: SiteState, arriving: RemoteInput, lag: int
    ) -> None:
        self._site, self._arriving, self._lag = site, arriving, lag
        self._ends: deque[State] = deque()  # version 0, and what each round ended with
        self._first = 0  # how many rounds the first of these had behind it
        waiting.channels.on_receive(self._take_in)

    def take(self) -> Token:
        """The version at the end of round r - 1 - lag; for later ones nobody waits."""
        self._take_in()
        self._arriving.wait_until(self._is_here)
        self._forget()
        return self._ends[0], self._ends[0].clock

    @property
    def _wanted(self) -> int:
        """How many rounds the version of this round has behind it."""
        return max(self._site.rounds - self._lag, 0)

    def _is_here(self) -> bool:
        return self._first + len(self._ends) > self._wanted

    def _take_in(self) -> None:
        """Whenever something comes: where a reader does not fire for many rounds, its source must not wait for it."""
        while self._first + len(self._ends) <= self._site.rounds and len(self._arriving):
            state = self._arriving.popleft()[0]
            self._ends.append(self._ends[-1] if state is None else state)
            self._forget()

    def _forget(self) -> None:
        """Versions before the one of this round are seen no more; the last stays, it may be that of the next."""
        while self._first < self._wanted and len(self._ends) > 1:
            self._ends.popleft()
            self._first += 1


class PacedView:
    """The versions that pace: all firings that one of them paces see the same."""

    def __init__(self, site: SiteState, arriving: RemoteInput) -> None:
        self._site, self._arriving = site, arriving
        self._token: Token = nothing()
        self._version = -1

    def take(self) -> Token:
        """The version that this part of the program is paced by: others came for firings that were left out."""
        paced_by = self._site.position_prefix[-2] + 1
        while self._version < paced_by:
            state = self._arriving.popleft()[0]
            self._version, self._token = state.version, (state, state.clock)
        return self._token


class NewestView:
    """The newest version that has come of a state that lives elsewhere."""

    def __init__(self, waiting: SiteWaits, arriving: RemoteInput) -> None:
        self._arriving, self._channels = arriving, waiting.channels
        self._state: State | None = None
        self._seen = 0  # the version that the last firing saw
        self.most_passed = 0  # versions between two firings
        waiting.channels.on_receive(self._take_in)

    def take(self) -> Token:
        """Whatever is newest; the first is waited for."""
        self._channels.drain()
        self._take_in()
        self._arriving.wait_until(lambda: self._state is not None)
        assert self._state is not None
        self.most_passed = max(self.most_passed, self._state.version - self._seen)
        self._seen = self._state.version
        return self._state, self._state.clock

    def line(self) -> str | None:
        """How stale it was at worst, in words."""
        if self.most_passed < 2:
            return None
        edge = self._arriving.wait.edge
        return f"{edge}: the newest version, of which up to {self.most_passed} passed between two firings"

    def _take_in(self) -> None:
        for state, _ in self._arriving.arrived():
            self._state = state
