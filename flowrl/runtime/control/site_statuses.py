"""The sites of a run as they can be seen: what each told last, and what those in this process do just now."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flowrl.channels.errors import RefusedMessage
from flowrl.runtime.executor import InstanceTimes
from flowrl.runtime.processes.launched_sites import LaunchedSites
from flowrl.runtime.status import AgedStatus, SiteStatus, read_status, status_from_data


class SiteStatuses:
    """What is known of the sites: told by their own threads, or by asides while those are busy."""

    def __init__(self, sites: LaunchedSites) -> None:
        self._sites = sites
        self._told: dict[str, tuple[SiteStatus, float]] = {}
        sites.on_out_of_band(self.aside)

    def told(self, name: str, data: list[Any]) -> None:
        """What a site tells with its progress."""
        self._told[name] = (status_from_data(data), time.perf_counter())

    def aside(self, name: str, text: str) -> None:
        """What is seen of a site while it fires or waits for long."""
        try:
            glance = status_from_data(json.loads(text))
        except (ValueError, TypeError):
            raise RefusedMessage("aside") from None
        known = self._told.get(name)
        if known is None or glance.fired >= known[0].fired:  # it may have been overtaken
            self._told[name] = (glance, time.perf_counter())

    def sites(self) -> dict[str, AgedStatus | None]:
        """Every site as it is now, or was when last something was heard of it; from any thread."""
        now = time.perf_counter()
        found: dict[str, AgedStatus | None] = {}
        for name in self._sites.names:
            walk, told = self._sites.walks.get(name), self._told.get(name)
            if walk is not None:
                found[name] = AgedStatus(read_status(walk))
            else:
                found[name] = (
                    AgedStatus(_later(told[0], now - told[1]), now - told[1]) if told else None
                )
        return found

    def instance_times(self) -> list[InstanceTimes]:
        """Where the time of all instances went, as far as they told."""
        found = []
        for name, (glance, _) in list(self._told.items()):
            for key, did in glance.nodes.items():
                mine = [w for w in glance.waited if w.who == key]
                waiting = {w.edge: w.s for w in mine if w.kind == "waiting"}
                blocked = {w.edge: w.s for w in mine if w.kind == "blocked"}
                found.append(InstanceTimes(key, did.fired, did.busy_s, waiting, blocked, name))
            found += _serving(name, glance)
        return found

    def idle_s(self) -> dict[str, float]:
        """How long each site waited to be allowed to go on."""
        return {
            name: sum(w.s for w in glance.waited if w.kind == "idle")
            for name, (glance, _) in list(self._told.items())
        }


def _serving(site: str, glance: SiteStatus) -> Iterator[InstanceTimes]:
    """What nodes that only clients elsewhere call did for them."""
    calls = [w for w in glance.waited if w.kind == "serving"]
    for who in dict.fromkeys(w.who for w in calls):
        mine = [w for w in calls if w.who == who]
        yield InstanceTimes(who, sum(w.times for w in mine), sum(w.s for w in mine), site=site)


def _later(glance: SiteStatus, s: float) -> SiteStatus:
    """What went on then goes on as far as anybody knows."""
    return replace(glance, doing=replace(glance.doing, for_s=glance.doing.for_s + s))
