"""Notices site processes that are alive and do nothing: they are stopped, or a node holds Python's global lock.

Every site process gives a sign of life each few seconds: it reports its progress, or its beacon reports its status.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from flowrl.runtime.sites.site_failures import SiteLost

WARN_S = 30.0
END_S = 300.0
CHECK_S = 1.0
WHY = "its process is stopped (SIGSTOP), or a node holds Python's global lock: see `flowrl why`"
# between checks: if more time has passed, this process itself was stopped, and silence means nothing
MAX_ELAPSED_S = 2.0


class SilenceWatch:
    """For how long nothing was heard of each site; owned by the coordinator's thread."""

    def __init__(
        self,
        sites: Iterable[str],
        show: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`show` shows a line to the user."""
        self._silent_s = dict.fromkeys(sites, 0.0)
        self._longest_s: dict[str, float] = {}  # of the sites with a warning
        self._show, self._clock = show, clock
        self._checked_s = clock()

    def on_sign_of_life(self, site: str) -> None:
        if site in self._silent_s:
            self._silent_s[site] = 0.0

    def watch(self, site: str) -> None:
        """Watch a site from now on."""
        self._silent_s[site] = 0.0

    def ignore(self, site: str) -> None:
        """Watch a site no more, because it is lost."""
        self._silent_s.pop(site, None)

    def check(self) -> None:
        """Warn of sites that are silent for `WARN_S`, and raise `SiteLost` after `END_S`."""
        now_s = self._clock()
        elapsed_s = now_s - self._checked_s
        if elapsed_s < CHECK_S:
            return
        self._checked_s = now_s
        for site, before_s in self._silent_s.items():
            silent_s = self._silent_s[site] = before_s + min(elapsed_s, MAX_ELAPSED_S)
            if silent_s >= END_S:
                raise SiteLost(f"site '{site}': nothing was heard of it for {END_S:g} s; {WHY}")
            if silent_s >= WARN_S:
                self._longest_s[site] = max(silent_s, self._longest_s.get(site, 0.0))
                if before_s < WARN_S:
                    heard = f"site '{site}': nothing was heard of it for {WARN_S:g} s"
                    self._show(f"{heard}; {WHY}; after {END_S:g} s the run ends")

    def lines(self) -> list[str]:
        """Return the silences that were warned of, for the summary."""
        return [f"site '{site}' was silent for {s:.0f} s" for site, s in self._longest_s.items()]
