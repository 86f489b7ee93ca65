"""The versions of a paced node's state that consumers with a `lag` may still read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from flowrl.checks.firing_counts import firings_before
from flowrl.checks.serial_program import SerialProgram
from flowrl.core.state import State
from flowrl.runtime.site_state import SiteState
from flowrl.runtime.streams import Token


class LaggedVersions:
    """Versions one after another, from the oldest that a consumer reads in this round.

    In all firings of a round a consumer reads the version `lag` firings before the last one of earlier rounds. The
    number of these firings follows from the program. So with a lag, nobody waits for a firing that goes on.
    """

    def __init__(self, firings_so_far: Callable[[], int], most_lag: int) -> None:
        """`firings_so_far` returns how often the node has fired in earlier rounds."""
        self._firings_so_far, self._most_lag = firings_so_far, most_lag
        self._versions: deque[State] = deque()

    def add(self, state: State) -> None:
        """Add the next version, and forget those that nobody reads anymore."""
        self._versions.append(state)
        oldest = self._firings_so_far() - self._most_lag
        while self._versions[0].version < min(oldest, state.version):
            self._versions.popleft()

    def continue_with(self, states: Iterable[State]) -> None:
        """Continue a saved run, in which these were the versions for later rounds."""
        self._versions = deque(states)

    @property
    def of_later_rounds(self) -> list[State]:
        """The versions that later rounds may read, if the node does not fire again in this round."""
        oldest = self._versions[-1].version - self._most_lag
        return [state for state in self._versions if state.version >= oldest]

    def has(self, lag: int) -> bool:
        """Return whether the version was added that is read with this lag."""
        return bool(self._versions) and self._versions[-1].version >= self._needed(lag)

    def take(self, lag: int) -> Token:
        """Return the version that is read with this lag."""
        state = self._versions[self._needed(lag) - self._versions[0].version]
        return state, state.clock

    def _needed(self, lag: int) -> int:
        return max(self._firings_so_far() - lag, 0)


def lagged_versions(
    program: SerialProgram, site: SiteState, node: str, most_lag: int
) -> LaggedVersions:
    """Return the empty versions of a paced node, for lags up to this one on this site."""
    return LaggedVersions(lambda: firings_before(program, site.rounds, node), most_lag)
