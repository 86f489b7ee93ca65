"""When lost sites are started again, and when they take part again."""

from __future__ import annotations

import re
from typing import cast

import pytest

from flowrl.checks.serial_program import Schedule, SerialProgram
from flowrl.core.state import Count
from flowrl.graph.site_layout import SiteLayout
from flowrl.runtime.control.messages import PeerReplaced, PositionedCount, SiteProgress
from flowrl.runtime.sites.launched_sites import LaunchedSites
from flowrl.runtime.sites.site_failures import SiteLost
from flowrl.runtime.sites.site_restarts import READY_S, STEADY_S, ElasticProgress, SiteRestarts
from flowrl.runtime.status import Activity, NodeStats, SiteStatus
from tests.manual_clock import ManualClock


class FakeSites:
    """Counts the starts of sites. Each has the peers `p` and `q`."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.lost: list[str] = []
        self.has_host = True
        self.layout = SiteLayout({}, {}, {"a": "cpu-9"})

    def start_again(self, site: str) -> list[str] | None:
        if not self.has_host:
            return None
        self.epochs[site] = self.epoch(site) + 1
        return ["p", "q"]

    def epoch(self, site: str) -> int:
        return self.epochs.get(site, 0)

    def lose(self, site: str, why: str) -> None:
        self.lost.append(site)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sites() -> FakeSites:
    return FakeSites()


@pytest.fixture
def restarts(sites: FakeSites, clock: ManualClock) -> SiteRestarts:
    return SiteRestarts(cast(LaunchedSites, sites), lambda text: None, clock)


def bring_back(restarts: SiteRestarts, sites: FakeSites, site: str = "a") -> None:
    """Let a started site become ready, and its peers replace it."""
    restarts.on_ready(site)
    for peer in "pq":
        restarts.on_peer_replaced(peer, PeerReplaced(site, sites.epoch(site), 1))
    assert restarts.take_returning() == [site]


def test_a_site_takes_part_again_when_it_is_ready_and_its_peers_have_replaced_it(
    restarts: SiteRestarts, sites: FakeSites
) -> None:
    restarts.lose("a", "killed")
    assert restarts.absent == {"a"}
    restarts.start_due()
    restarts.on_ready("a")
    restarts.on_peer_replaced("p", PeerReplaced("a", 1, 2))
    assert restarts.take_returning() == []
    restarts.on_peer_replaced("q", PeerReplaced("a", 1, 0))
    assert restarts.take_returning() == ["a"]
    assert not restarts.absent
    assert restarts.lines() == [
        "site 'a' was lost 1 time, while the run went on (last: killed); 2 tokens to it were lost"
    ]


def test_a_peer_that_has_replaced_an_earlier_start_only_is_awaited(
    restarts: SiteRestarts, sites: FakeSites
) -> None:
    restarts.lose("a", "killed")
    restarts.start_due()
    restarts.lose("a", "killed again")
    sites.epochs["a"] = 7
    restarts.on_ready("a")
    restarts.on_peer_replaced("p", PeerReplaced("a", 1, 0))
    assert restarts.take_returning() == []


def test_a_peer_that_is_lost_is_not_awaited(restarts: SiteRestarts, sites: FakeSites) -> None:
    restarts.lose("a", "killed")
    restarts.start_due()
    restarts.on_ready("a")
    restarts.on_peer_replaced("p", PeerReplaced("a", 1, 0))
    restarts.lose("q", "killed")
    assert restarts.take_returning() == ["a"]


def test_a_site_that_is_lost_again_and_again_is_started_later_and_later(
    restarts: SiteRestarts, sites: FakeSites, clock: ManualClock
) -> None:
    for wait_s in (0.0, 1.0, 4.0, 10.0):
        restarts.lose("a", "killed")
        before = sites.epoch("a")
        if wait_s:
            clock.now_s += wait_s - 0.01
            restarts.start_due()
            assert sites.epoch("a") == before
        clock.now_s += 0.01
        restarts.start_due()
        assert sites.epoch("a") == before + 1
        bring_back(restarts, sites)
    why = "site 'a' has ended: killed; it was lost 5 times in a row"
    with pytest.raises(SiteLost, match=re.escape(why)):
        restarts.lose("a", "killed")


def test_losses_count_anew_after_a_steady_minute(
    restarts: SiteRestarts, sites: FakeSites, clock: ManualClock
) -> None:
    for _ in range(12):
        restarts.lose("a", "killed")
        restarts.start_due()
        bring_back(restarts, sites)
        clock.now_s += STEADY_S
    assert "was lost 12 times" in restarts.lines()[0]


def test_a_site_that_does_not_become_ready_is_lost_again(
    restarts: SiteRestarts, sites: FakeSites, clock: ManualClock
) -> None:
    restarts.lose("a", "killed")
    restarts.start_due()
    clock.now_s += READY_S + 1
    restarts.start_due()
    assert sites.lost == ["a"]
    assert "was lost 2 times" in restarts.lines()[0]
    assert "it was not ready within 300 s" in restarts.lines()[0]


def test_a_site_without_a_host_is_started_when_one_has_joined(
    restarts: SiteRestarts, sites: FakeSites, clock: ManualClock
) -> None:
    sites.has_host = False
    restarts.lose("a", "its host is lost")
    restarts.start_due()
    clock.now_s += 20
    restarts.start_due()
    restarts.require_host_within(20.0)
    assert not sites.epochs
    sites.has_host = True
    clock.now_s += 1
    restarts.start_due()
    bring_back(restarts, sites)


def test_a_host_is_awaited_for_a_limited_time(
    restarts: SiteRestarts, sites: FakeSites, clock: ManualClock
) -> None:
    sites.has_host = False
    restarts.lose("a", "its host is lost")
    restarts.start_due()
    clock.now_s += 21
    why = "site 'a' was lost: its host is lost; no host has joined for it within 20 s"
    with pytest.raises(SiteLost, match=why):
        restarts.require_host_within(20.0)


def test_a_site_that_the_run_can_miss_joins_when_a_host_is_there(
    restarts: SiteRestarts, sites: FakeSites, clock: ManualClock
) -> None:
    sites.has_host = False
    restarts.expect("a", is_there=False)
    restarts.expect("b", is_there=True)
    assert restarts.absent == {"a"}
    restarts.start_due()
    clock.now_s += 1000
    restarts.require_host_within(20.0)
    restarts.start_due()
    assert restarts.lines() == ["no host was there for 'a', and the run did without it"]
    sites.has_host = True
    clock.now_s += 1
    restarts.start_due()
    bring_back(restarts, sites)
    assert restarts.lines() == ["site 'a' joined while the run went on, on host 'cpu-9'"]


def test_nobody_waits_for_the_host_of_a_site_that_the_run_can_miss(
    restarts: SiteRestarts, sites: FakeSites, clock: ManualClock
) -> None:
    restarts.expect("b", is_there=True)
    sites.has_host = False
    restarts.lose("b", "its host is lost")
    restarts.start_due()
    clock.now_s += 1000
    restarts.require_host_within(20.0)
    assert restarts.lines() == [
        "site 'b' was lost 1 time, while the run went on (last: its host is lost)"
    ]


def test_a_site_that_is_left_out_is_not_started(restarts: SiteRestarts, sites: FakeSites) -> None:
    restarts.lose("a", "killed")
    restarts.leave_out("a")
    restarts.start_due()
    assert not sites.epochs
    assert not restarts.absent
    assert restarts.away == {"a"}


def test_the_progress_of_an_instance_sums_up_its_counts() -> None:
    progress = ElasticProgress(SerialProgram(Schedule(["b", "c"], {"b": 1, "c": 1}, [])))
    for fired in (2, 5):
        nodes = (
            NodeStats("c#1", "s", fired, 0.0),
            NodeStats("envs#1", "s", 9, 0.0, is_service=True),
        )
        counts = tuple(PositionedCount((n, 1, 1, n), Count(10, 1)) for n in range(fired))
        progress.add(
            "s", SiteProgress(3, counts, (), SiteStatus("s", Activity("firing"), nodes=nodes))
        )
    assert progress.of_site("s") == {"c#1": (5, Count(70, 7))}
    assert progress.of_site("unknown") == {}
