"""The time of a run on several sites: firing, waiting for each input, blocked on each output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from flowrl.runtime.service_calls import LocalServiceStub, measured
from flowrl.runtime.site_state import ServiceCalls, SiteState
from tests.runtime.virtual_clock import VirtualClock

SLOW = "tests.sites.slow_nodes:"
EDGE = "a.data -> b.data"
ROUNDS = 40


def pair(producer_s: float = 0.0, consumer_s: float = 0.0, **more: Any) -> dict[str, Any]:
    """Return a graph of a collector `a` and a consumer `b`, which take some time."""
    a = {"type": f"{SLOW}TimedCollector", "each_s": producer_s}
    b = {"type": f"{SLOW}TimedNode", "each_s": consumer_s}
    return {"nodes": {"a": a, "b": b}, "edges": [{"a -> b": more} if more else "a -> b"]}


def run_graph(
    graph: dict[str, Any], placement: str, out: Path, rounds: int = ROUNDS
) -> tuple[RunResult, dict[str, Any]]:
    """Run a graph, and return the result and the last row of the timings."""
    limits = Limits(rounds=rounds)
    result = Run(check(load_data(graph)), placement=placement, out=out, limits=limits).run()
    rows = (out / "timings.jsonl").read_text().splitlines()
    return result, json.loads(rows[-1])


def test_a_node_with_a_slow_producer_waits_for_its_input(
    virtual_clock: VirtualClock, tmp_path: Path
) -> None:
    result, times = run_graph(pair(producer_s=0.01), "threads", tmp_path / "r")
    fired_s = 0.01 * ROUNDS
    assert times["busy_s"] == pytest.approx({"a": fired_s, "b": 0.0})
    assert 0.8 * fired_s <= times["waiting_s"]["b"][EDGE] <= fired_s + 1e-6
    assert times["blocked_s"] == {}
    assert result.bottleneck == "a is the bottleneck: it fired for 100% of the time"


def test_a_node_with_a_slow_consumer_is_blocked_on_its_output(
    virtual_clock: VirtualClock, tmp_path: Path
) -> None:
    result, times = run_graph(pair(consumer_s=0.01, capacity=2), "threads", tmp_path / "r")
    fired_s = 0.01 * ROUNDS
    assert times["busy_s"] == pytest.approx({"a": 0.0, "b": fired_s})
    # When the last tokens wait on the edge, the producer has fired for the last time.
    assert 0.7 * fired_s <= times["blocked_s"]["a"][EDGE] <= fired_s
    assert result.bottleneck == "b is the bottleneck: it fired for 100% of the time"


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["producer_s", "consumer_s"])
def test_the_times_of_sites_in_processes_are_measured(slow: str, tmp_path: Path) -> None:
    """By the real clock: how much longer than it sleeps a node fires depends on the load of the machine."""
    graph = pair(**{slow: 0.01}, capacity=2)
    result, times = run_graph(graph, "processes", tmp_path / "r")
    node, waits = (
        ("a", times["waiting_s"]["b"]) if slow == "producer_s" else ("b", times["blocked_s"]["a"])
    )
    assert 0.01 * ROUNDS <= times["busy_s"][node] <= result.wall_s
    assert 0.0 < waits[EDGE] <= result.wall_s
    assert result.bottleneck.startswith(f"{node} is the bottleneck: it fired for ")


def test_a_site_that_waits_for_a_lease_is_idle(virtual_clock: VirtualClock, tmp_path: Path) -> None:
    """The collector waits for no input, but may be ahead by no more than a lease of half a second."""
    graph = pair(consumer_s=0.005, capacity=1000)
    _, times = run_graph(graph, "threads", tmp_path / "r", rounds=150)
    assert times["blocked_s"] == {}
    assert 0.05 < times["idle_s"][times["site"]["a"]] < 0.75


def test_the_times_of_a_site_add_up(virtual_clock: VirtualClock, tmp_path: Path) -> None:
    """The times of firing, waiting and idling of a site add up to the time between its first and its last firing."""
    result, times = run_graph(
        pair(producer_s=0.005, consumer_s=0.005, capacity=1), "threads", tmp_path / "r"
    )
    for key in ("a", "b"):
        waits_s = sum(times["waiting_s"].get(key, {}).values())
        waits_s += sum(times["blocked_s"].get(key, {}).values())
        whole_s = times["busy_s"][key] + waits_s + times["idle_s"].get(times["site"][key], 0.0)
        assert ROUNDS * 0.005 <= whole_s <= result.wall_s + 1e-6


def test_on_one_site_no_node_waits(virtual_clock: VirtualClock, tmp_path: Path) -> None:
    result, times = run_graph(pair(producer_s=0.002, consumer_s=0.001), "serial", tmp_path / "r")
    assert times["busy_s"] == pytest.approx({"a": 0.002 * ROUNDS, "b": 0.001 * ROUNDS})
    assert times["waiting_s"] == times["blocked_s"] == times["idle_s"] == {}
    assert times["site"] == {"a": "main", "b": "main"}
    assert result.bottleneck == "a is the bottleneck: it fired for 67% of the time (then b 33%)"


def test_a_client_waits_for_its_link_while_a_remote_service_works(
    virtual_clock: VirtualClock, tmp_path: Path
) -> None:
    a = {"type": f"{SLOW}TimedCaller", "calls": 4}
    envs = {"type": f"{SLOW}TimedService", "each_s": 0.002}
    graph = {
        "nodes": {"a": a, "envs": envs, "b": f"{SLOW}TimedNode"},
        "edges": ["a <-> envs", "a -> b"],
    }
    result, times = run_graph(graph, "a=thread,envs=thread:x", tmp_path / "r")
    served_s = ROUNDS * 4 * 0.002
    assert times["busy_s"]["envs"] == pytest.approx(served_s)
    assert times["busy_s"]["a"] == pytest.approx(0.0)
    assert times["waiting_s"]["a"]["envs.serve <-> a.serve"] == pytest.approx(served_s)
    assert times["site"]["envs"] != times["site"]["a"]
    assert result.bottleneck.startswith("envs is the bottleneck: it answered calls for ")


def calling(service: dict[str, Any]) -> dict[str, Any]:
    """Return a graph whose collector calls a service four times in each firing."""
    a = {"type": f"{SLOW}TimedCaller", "calls": 4}
    return {
        "nodes": {"a": a, "envs": service, "b": f"{SLOW}TimedNode"},
        "edges": ["a <-> envs", "a -> b"],
    }


def test_the_time_of_a_service_on_the_same_site_is_its_own(
    virtual_clock: VirtualClock, tmp_path: Path
) -> None:
    graph = calling({"type": f"{SLOW}TimedService", "each_s": 0.001})
    result, times = run_graph(graph, "serial", tmp_path / "r")
    assert times["busy_s"] == pytest.approx({"envs": ROUNDS * 4 * 0.001, "a": 0.0, "b": 0.0})
    assert result.bottleneck.startswith("envs is the bottleneck: it answered calls for 100%")
    assert result.bottleneck.endswith("; let it work less than 1 ms")


def test_a_service_that_calls_another_one_does_not_count_its_time(
    virtual_clock: VirtualClock, tmp_path: Path
) -> None:
    graph = calling({"type": f"{SLOW}RelayingService"})
    graph["nodes"]["inner"] = {"type": f"{SLOW}TimedService", "each_s": 0.001}
    graph["edges"].append("envs <-> inner")
    _, times = run_graph(graph, "serial", tmp_path / "r")
    served_s = {"inner": ROUNDS * 4 * 0.001}  # and no other node takes any time
    assert {node: s for node, s in times["busy_s"].items() if s} == pytest.approx(served_s)


def test_the_time_of_a_part_is_shown(virtual_clock: VirtualClock, tmp_path: Path) -> None:
    graph = calling({"type": f"{SLOW}TimedService"})
    graph["nodes"]["a"]["part_s"] = 0.002
    result, times = run_graph(graph, "serial", tmp_path / "r")
    assert times["parts_s"] == {"a": {"thinking": pytest.approx(ROUNDS * 0.002)}}
    assert times["busy_s"]["a"] == pytest.approx(ROUNDS * 0.002)
    assert ", its thinking " in result.bottleneck


def test_calls_that_fail_are_measured_and_what_is_no_method_is_the_services_own() -> None:
    calls, site = ServiceCalls(), SiteState()
    stub: Any = LocalServiceStub([3, 1], ["pop", "missing"], calls, site)
    assert stub.pop() == 1
    assert stub.pop(0) == 3
    with pytest.raises(IndexError):
        stub.pop()
    assert (calls.count, calls.began_s) == (3, 0.0)
    assert stub.count(3) == 0  # not a method of the service's port
    with pytest.raises(AttributeError, match="missing"):
        stub.missing()


def test_waits_in_a_call_are_not_its_time(virtual_clock: VirtualClock) -> None:
    calls, site = ServiceCalls(), SiteState()

    def wait() -> None:
        site.last_fired_s += 5.0  # as `SiteWaits` does after a wait of five seconds

    measured(wait, calls, site)()
    assert calls.busy_s == -5.0
