"""The waits of sites for each other, and the verdict on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flowrl.runs.why import verdict, wait_graph, why_text
from flowrl.runtime.status import Activity, EdgeStats, RunStatus, SiteStatus


def site(name: str, doing: str, edge: str = "", peer: str = "", **more: Any) -> SiteStatus:
    """A site `name` with one instance of the same name."""
    instance = name if doing in ("firing", "waiting", "blocked") else ""
    activity = Activity(doing, more.pop("for_s", 12.0), instance, edge, peer)  # type: ignore[arg-type]
    return SiteStatus(name, activity, **{"rounds": 7, "age_s": 0.2, **more})


def status_of(*sites: SiteStatus, edges: tuple[EdgeStats, ...] = ()) -> RunStatus:
    about = ("g", "processes", 0, "r", 1, "running", 60.0, 59.0)
    return RunStatus(*about, 0, 0, 0, None, None, sites, edges)


def test_a_chain_of_waits_is_followed_to_its_end() -> None:
    found = status_of(
        site("a", "waiting", "b.x -> a.x", "b"),
        site("b", "waiting", "c.x -> b.x", "c", for_s=11.0),
        site("c", "firing", for_s=10.0),
    )
    assert verdict(found) == "all wait for c: c has been firing for 10 s"
    assert [s.site for s in wait_graph(found).sites] == ["a", "b", "c"]
    assert "  b has waited 11 s for c.x -> b.x, from c [b]" in why_text(found)


def test_a_deadlock_names_its_cycle() -> None:
    found = status_of(
        site("d", "waiting", "a.x -> d.x", "a"),
        site("a", "waiting", "b.x -> a.x", "b"),
        site("b", "blocked", "b.y -> a.y", "a"),
    )
    assert [s.site for s in wait_graph(found).cycle] == ["a", "b"]
    assert verdict(found) == (
        "deadlock: a waits for b on b.x -> a.x, b waits for a on b.y -> a.y; none of them can continue"
    )


def test_a_run_that_waits_for_hosts_says_for_which() -> None:
    text = "waiting for hosts (none has joined for 'cpu-*'): flowrl host --join tcp://head:5555"
    found = replace(status_of(site("a", "starting")), waits_for=text)
    assert verdict(found) == text


def test_a_short_cycle_is_no_deadlock() -> None:
    """The sites were not read at the same time."""
    found = status_of(
        site("a", "waiting", "b.x -> a.x", "b", for_s=0.2),
        site("b", "waiting", "a.x -> b.x", "a", for_s=30.0),
    )
    assert wait_graph(found).cycle == []
    assert not verdict(found).startswith("deadlock")


def test_an_input_that_takes_any_token_waits_for_all_its_producers() -> None:
    unknown = (None,) * 7
    edges = tuple(EdgeStats("", "stream", s, "a", s, "a", *unknown) for s in ("c", "b"))
    found = status_of(
        site("a", "waiting", "any of b.x, c.x -> a.x"), site("b", "firing"), site("c", "firing"),
        edges=edges,
    )  # fmt: skip
    assert wait_graph(found).waits_for["a"] == ["b", "c"]
    assert verdict(found).startswith("all wait for b and c: b has been firing for 12 s and c ")


def test_an_idle_site_is_ahead_of_the_slowest() -> None:
    found = status_of(
        site("a", "idle", rounds=20), site("b", "firing", rounds=3), site("c", "stopped")
    )
    assert wait_graph(found).waits_for == {"a": ["b"], "b": [], "c": []}
    assert "  a has been idle 12 s: it is ahead of b" in why_text(found)
    assert "  c has done its part" in why_text(found)


def test_a_silent_site_is_what_others_wait_for() -> None:
    found = status_of(
        site("a", "waiting", "b.x -> a.x", "b"), site("b", "firing", for_s=9.0, age_s=9.0)
    )
    assert verdict(found).startswith("all wait for b: b has reported nothing for 9.0 s ")


def test_a_site_that_is_being_made_is_what_others_wait_for() -> None:
    found = status_of(site("a", "idle", rounds=0), site("b", "starting", rounds=0, for_s=5.0))
    assert verdict(found) == "all wait for b: b is still being made"


def test_where_all_are_at_work_nothing_is_stuck() -> None:
    found = status_of(
        site("a", "waiting", "b.x -> a.x", "b", for_s=0.1), site("b", "firing", for_s=0.01)
    )
    assert verdict(found) == "nothing is stuck: no wait and no firing has lasted for 1.0 s"
    assert "  b is at work [b]" in why_text(found)


def test_a_long_wait_for_a_site_at_work_is_not_a_fault() -> None:
    """An evaluator waits for its next version."""
    found = status_of(site("e", "waiting", "l.w -> e.w", "l"), site("l", "firing", for_s=0.01))
    assert verdict(found) == "it goes on: l is at work"
