"""A clock that passes only where nodes take time, so that measured times do not depend on the load of the machine."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from flowrl.runtime import instance
from flowrl.runtime.site_state import SiteState
from tests.sites import slow_nodes

PATIENCE_S = 60.0  # of the real clock, until a test fails that would hang
POLL_S = 1e-4
_real_sleep, _real_time = time.sleep, time.monotonic


class VirtualClock:
    """Replaces `time.perf_counter` of a run in threads, and the sleep of slow nodes.

    It works like a simulation of discrete events: time goes on to the end of the sleep that ends first, once every
    site waits or sleeps.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._sites: list[SiteState] = []
        self._wakes: dict[int, float] = {}  # when each sleeping thread wakes
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now_s

    def add_site(self, site: SiteState) -> None:
        self._sites.append(site)

    def sleep(self, s: float) -> None:
        """Let time pass for the site of this thread."""
        own, deadline = threading.get_ident(), _real_time() + PATIENCE_S
        with self._lock:
            self._wakes[own] = self.now_s + s
        while not self._has_woken(own):
            assert _real_time() < deadline, "a site neither waits nor sleeps"
            _real_sleep(POLL_S)

    def _has_woken(self, own: int) -> bool:
        with self._lock:
            working = sum(site.waiting is None for site in self._sites)
            if working > len(self._wakes) or self._wakes[own] > min(self._wakes.values()):
                return False
            self.now_s = max(self.now_s, self._wakes.pop(own))
            return True


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """A virtual clock for all sites that are made in this process."""
    clock = VirtualClock()
    make = SiteState.__init__

    def make_and_note(site: SiteState, *arguments: Any) -> None:
        make(site, *arguments)
        clock.add_site(site)

    monkeypatch.setattr(SiteState, "__init__", make_and_note)
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(instance, "_now", clock)
    monkeypatch.setattr(slow_nodes, "sleep", clock.sleep)
    return clock
