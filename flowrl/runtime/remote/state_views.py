"""Views by which an instance reads the state of a node on another site."""

from __future__ import annotations

from collections import deque

from flowrl.core.state import State
from flowrl.runtime.lagged_versions import LaggedVersions
from flowrl.runtime.remote.edges import RemoteInput
from flowrl.runtime.remote.waiting import SiteWaits
from flowrl.runtime.site_state import SiteState
from flowrl.runtime.streams import Token, take_nothing


class RoundEndView:
    """Reads the version with which round r - 1 - lag ended on the other site."""

    def __init__(self, waits: SiteWaits, site: SiteState, queue: RemoteInput, lag: int) -> None:
        self._site, self._queue, self._lag = site, queue, lag
        self._versions: deque[State] = deque()  # version 0, then one for the end of each round
        self._first = 0  # the number of rounds that had ended with the first of these versions
        waits.channels.on_receive(self._receive)

    def continue_after(self, rounds: int) -> None:
        """Expect as the first version that which the round after these reads."""
        self._first = max(rounds - self._lag, 0)

    def take(self) -> Token:
        """Return the version for this round, without waiting for later versions."""
        self._receive()
        self._queue.wait_until(self._has_version)
        self._drop_old()
        return self._versions[0], self._versions[0].clock

    @property
    def _needed(self) -> int:
        """The number of rounds that had ended with the version that this round reads."""
        return max(self._site.rounds - self._lag, 0)

    def _has_version(self) -> bool:
        return self._first + len(self._versions) > self._needed

    def _receive(self) -> None:
        """Take versions when they arrive, because their producer must not wait for a consumer that seldom fires."""
        while self._first + len(self._versions) <= self._site.rounds and len(self._queue):
            state = self._queue.popleft()[0]
            self._versions.append(self._versions[-1] if state is None else state)
            self._drop_old()

    def _drop_old(self) -> None:
        """Drop the versions before the one of this round. The last one is kept, as later rounds may have the same."""
        while self._first < self._needed and len(self._versions) > 1:
            self._versions.popleft()
            self._first += 1


class PacedView:
    """Reads the version that paces the current schedule. All firings of the schedule read the same version."""

    def __init__(self, site: SiteState, queue: RemoteInput) -> None:
        self._site, self._queue = site, queue
        self._token: Token = take_nothing()
        self._version = -1

    def take(self) -> Token:
        """Return the version of this position. Versions that paced skipped firings are passed over."""
        version = self._site.position_prefix[-2] + 1
        while self._version < version:
            state = self._queue.popleft()[0]
            self._version, self._token = state.version, (state, state.clock)
        return self._token


class LaggedView:
    """Reads the state of a paced node on another site, with a lag that counts its firings."""

    def __init__(
        self, waits: SiteWaits, queue: RemoteInput, versions: LaggedVersions, lag: int
    ) -> None:
        self._queue, self._versions, self._lag = queue, versions, lag
        waits.channels.on_receive(self._receive)

    def take(self) -> Token:
        """Return the version for this round, without waiting for later versions."""
        self._queue.wait_until(self._has_version)
        return self._versions.take(self._lag)

    def _has_version(self) -> bool:
        self._receive()
        return self._versions.has(self._lag)

    def _receive(self) -> None:
        for state, _ in self._queue.take_arrived():
            self._versions.add(state)


class NewestView:
    """Reads the newest version that has arrived."""

    def __init__(self, waits: SiteWaits, queue: RemoteInput) -> None:
        self._queue, self._channels = queue, waits.channels
        self._state: State | None = None
        self._last_read = 0  # the number of the version that the last firing read
        self._max_step = 0  # the largest difference of two successive numbers
        waits.channels.on_receive(self._receive)

    def take(self) -> Token:
        """Return the newest version. Only the first one is waited for."""
        self._channels.drain()
        self._receive()
        self._queue.wait_until(lambda: self._state is not None)
        assert self._state is not None
        self._max_step = max(self._max_step, self._state.version - self._last_read)
        self._last_read = self._state.version
        return self._state, self._state.clock

    def irregularity(self) -> str | None:
        """Describe how many versions passed between two firings at most; None if none was skipped."""
        if self._max_step < 2:
            return None
        edge = self._queue.wait.edge
        return f"{edge}: the newest version, of which up to {self._max_step} passed between two firings"

    def _receive(self) -> None:
        for state, _ in self._queue.take_arrived():
            self._state = state
