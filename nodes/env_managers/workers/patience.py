"""How long to look for something before sleeping: to sleep and be woken costs more than many steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

MOST_S = 2e-4  # nobody looks for longer than that
FAR_S = 4 * MOST_S  # one long wait is not taken for the rule
NEW = 0.1  # the weight of the last wait among those before


def _sleep_for_no_time() -> None:
    time.sleep(0)


give_way: Callable[[], None] = getattr(os, "sched_yield", _sleep_for_no_time)
"""Let others have the core, if any want it."""


class Patience:
    """Looks, as long as waits were short lately; whoever waits long anyway sleeps at once."""

    def __init__(self, most_s: float = MOST_S) -> None:
        self._most_s, self._mean_s = most_s, 0.0

    def look(self, ready: Callable[[], bool]) -> bool:
        """Whether it was ready in time; meanwhile others have the core."""
        if self._mean_s >= self._most_s:
            return ready()
        clock = time.perf_counter
        until_s = clock() + self._most_s
        while not ready():
            give_way()
            if clock() > until_s:
                return False
        return True

    def waited(self, since_s: float) -> None:
        """A wait is over, which began then (by `time.perf_counter`)."""
        took_s = min(time.perf_counter() - since_s, FAR_S)
        self._mean_s += NEW * (took_s - self._mean_s)
