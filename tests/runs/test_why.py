"""Following waits to their end."""

from __future__ import annotations

from typing import Any

from flowrl.runs.why import reason_of, verdict, why_text


def site(name: str, doing: str, edge: str = "", peer: str = "", **more: Any) -> dict[str, Any]:
    """A site `name` with one instance of the same name."""
    who = name if doing in ("firing", "waiting", "blocked") else ""
    about = {"site": name, "kind": "process", "doing": doing, "for_s": 12.0, "who": who}
    return {**about, "edge": edge, "peer": peer, "rounds": 7, "silent_s": 0.2, **more}


def seen(*sites: dict[str, Any], edges: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A look at them."""
    about = {"graph": "g", "placement": "processes", "status": "running", "wall_s": 60.0}
    return {**about, "sites": list(sites), "edges": edges or [], "nodes": []}


def test_a_chain_is_followed_to_the_one_that_all_wait_for() -> None:
    found = seen(
        site("a", "waiting", "b.x -> a.x", "b"),
        site("b", "waiting", "c.x -> b.x", "c", for_s=11.0),
        site("c", "firing", for_s=10.0),
    )
    assert verdict(found) == "all wait for c: c has been firing for 10 s"
    assert [s["site"] for s in reason_of(found).sites] == ["a", "b", "c"]
    assert "  b has waited 11 s for c.x -> b.x, from c [b]" in why_text(found)


def test_a_deadlock_names_its_cycle() -> None:
    found = seen(
        site("d", "waiting", "a.x -> d.x", "a"),
        site("a", "waiting", "b.x -> a.x", "b"),
        site("b", "blocked", "b.y -> a.y", "a"),
    )
    assert [s["site"] for s in reason_of(found).cycle] == ["a", "b"]
    assert verdict(found) == (
        "deadlock: a waits for b on b.x -> a.x, b waits for a on b.y -> a.y; none of them can go on"
    )


def test_a_cycle_of_the_moment_is_no_deadlock() -> None:
    """The sites were not seen at the same time."""
    found = seen(
        site("a", "waiting", "b.x -> a.x", "b", for_s=0.2),
        site("b", "waiting", "a.x -> b.x", "a", for_s=30.0),
    )
    assert reason_of(found).cycle == []
    assert not verdict(found).startswith("deadlock")


def test_who_takes_what_comes_first_waits_for_all_its_sources() -> None:
    edges = [{"edge": "", "from_site": s, "to_site": "a", "to": "a"} for s in ("c", "b")]
    found = seen(
        site("a", "waiting", "any of b.x, c.x -> a.x"), site("b", "firing"), site("c", "firing"),
        edges=edges,
    )  # fmt: skip
    assert reason_of(found).waits_for["a"] == ["b", "c"]
    assert verdict(found).startswith("all wait for b and c: b has been firing for 12 s and c ")


def test_who_is_idle_is_ahead_of_the_slowest() -> None:
    found = seen(site("a", "idle", rounds=20), site("b", "firing", rounds=3), site("c", "stopped"))
    assert reason_of(found).waits_for == {"a": ["b"], "b": [], "c": []}
    assert "  a has been idle 12 s: it is ahead of b" in why_text(found)
    assert "  c has done its part" in why_text(found)


def test_a_silent_site_is_what_others_wait_for() -> None:
    found = seen(
        site("a", "waiting", "b.x -> a.x", "b"), site("b", "firing", for_s=9.0, silent_s=9.0)
    )
    assert verdict(found).startswith("all wait for b: b has let nothing be heard of it for 9.0 s ")


def test_a_site_that_is_being_made_is_what_others_wait_for() -> None:
    found = seen(site("a", "idle", rounds=0), site("b", "starting", rounds=0, for_s=5.0))
    assert verdict(found) == "all wait for b: b is still being made"


def test_where_all_are_at_work_nothing_is_stuck() -> None:
    found = seen(
        site("a", "waiting", "b.x -> a.x", "b", for_s=0.1), site("b", "firing", for_s=0.01)
    )
    assert verdict(found) == "nothing is stuck: no wait and no firing has lasted for 1.0 s"
    assert "  b is at work [b]" in why_text(found)


def test_a_long_wait_for_one_who_is_at_work_is_told_as_such() -> None:
    """An evaluator waits for its next version: that is no fault of anybody."""
    found = seen(site("e", "waiting", "l.w -> e.w", "l"), site("l", "firing", for_s=0.01))
    assert verdict(found) == "it goes on: l is at work"
