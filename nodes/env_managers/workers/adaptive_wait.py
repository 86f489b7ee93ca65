"""Waiting that adapts between spinning and sleeping: sleeping and being woken costs more than many env steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

MAX_SPIN_S = 2e-4
MAX_COUNTED_WAIT_S = 4 * MAX_SPIN_S  # so that one long wait does not dominate the mean
NEWEST_WEIGHT = 0.1  # of the last wait in the moving mean


def _sleep_for_no_time() -> None:
    time.sleep(0)


yield_core: Callable[[], None] = getattr(os, "sched_yield", _sleep_for_no_time)
"""Let another thread or process run on this core, if one is ready."""


class AdaptiveWait:
    """Spins for a short time while recent waits were short; after long waits the caller should sleep at once."""

    def __init__(self, max_spin_s: float = MAX_SPIN_S) -> None:
        self._max_spin_s, self._mean_s = max_spin_s, 0.0

    def spin(self, is_ready: Callable[[], bool]) -> bool:
        """Poll `is_ready`, yielding the core in between, and return its last value."""
        if self._mean_s >= self._max_spin_s:
            return is_ready()
        clock = time.perf_counter
        until_s = clock() + self._max_spin_s
        while not is_ready():
            yield_core()
            if clock() > until_s:
                return False
        return True

    def record_wait(self, since_s: float) -> None:
        """Count a finished wait that began at `since_s` (of `time.perf_counter`), spinning and sleeping included."""
        took_s = min(time.perf_counter() - since_s, MAX_COUNTED_WAIT_S)
        self._mean_s += NEWEST_WEIGHT * (took_s - self._mean_s)
