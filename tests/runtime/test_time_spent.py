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


APART = ["threads", pytest.param("processes", marks=pytest.mark.slow)]


@pytest.mark.parametrize("placement", APART)
def test_a_node_with_a_slow_producer_waits_for_its_input(placement: str, tmp_path: Path) -> None:
    result, times = run_graph(pair(producer_s=0.01), placement, tmp_path / "r")
    fired_s = 0.01 * ROUNDS
    assert fired_s <= times["busy_s"]["a"] < 2.5 * fired_s
    assert times["busy_s"]["b"] < 0.3 * fired_s
    assert 0.8 * fired_s < times["waiting_s"]["b"][EDGE] < 2.5 * fired_s
    assert times["blocked_s"].get("a", {}).get(EDGE, 0.0) < 0.3 * fired_s
    assert result.bottleneck.startswith("a is the bottleneck: it fired for ")
    assert ", waiting " in result.bottleneck
    assert result.bottleneck.endswith(f" for {EDGE})")


@pytest.mark.parametrize("placement", APART)
def test_a_node_with_a_slow_consumer_is_blocked_on_its_output(
    placement: str, tmp_path: Path
) -> None:
    result, times = run_graph(pair(consumer_s=0.01, capacity=2), placement, tmp_path / "r")
    fired_s = 0.01 * ROUNDS
    assert fired_s <= times["busy_s"]["b"] < 2.5 * fired_s
    assert times["busy_s"]["a"] < 0.3 * fired_s
    assert 0.7 * fired_s < times["blocked_s"]["a"][EDGE] < 2.5 * fired_s
    assert result.bottleneck.startswith("b is the bottleneck: it fired for ")
    assert result.bottleneck.endswith(f" on {EDGE})")


def test_a_site_that_waits_for_a_lease_is_idle(tmp_path: Path) -> None:
    """The collector waits for no input, but may be ahead by no more than a lease of half a second."""
    _, times = run_graph(
        pair(consumer_s=0.005, capacity=1000), "threads", tmp_path / "r", rounds=150
    )
    assert times["blocked_s"] == {}
    assert 0.05 < times["idle_s"][times["site"]["a"]] < 0.75


def test_the_times_of_a_site_add_up(tmp_path: Path) -> None:
    """The times of firing, waiting and idling of a site add up to the time between its first and its last firing."""
    result, times = run_graph(
        pair(producer_s=0.005, consumer_s=0.005, capacity=1), "threads", tmp_path / "r"
    )
    for key in ("a", "b"):
        waits_s = sum(times["waiting_s"].get(key, {}).values())
        waits_s += sum(times["blocked_s"].get(key, {}).values())
        whole_s = times["busy_s"][key] + waits_s + times["idle_s"].get(times["site"][key], 0.0)
        assert ROUNDS * 0.005 <= whole_s <= result.wall_s


def test_on_one_site_no_node_waits(tmp_path: Path) -> None:
    result, times = run_graph(pair(producer_s=0.002, consumer_s=0.001), "serial", tmp_path / "r")
    assert times["waiting_s"] == times["blocked_s"] == times["idle_s"] == {}
    assert times["site"] == {"a": "main", "b": "main"}
    assert result.bottleneck.startswith("a is the bottleneck: it fired for ")
    assert "waiting" not in result.bottleneck


def test_a_client_waits_for_its_link_while_a_remote_service_works(tmp_path: Path) -> None:
    a = {"type": f"{SLOW}TimedCaller", "calls": 4}
    envs = {"type": f"{SLOW}TimedService", "each_s": 0.002}
    graph = {
        "nodes": {"a": a, "envs": envs, "b": f"{SLOW}TimedNode"},
        "edges": ["a <-> envs", "a -> b"],
    }
    result, times = run_graph(graph, "a=thread,envs=thread:x", tmp_path / "r")
    served_s = ROUNDS * 4 * 0.002
    assert served_s <= times["busy_s"]["envs"] < 2.5 * served_s
    assert times["busy_s"]["a"] < 0.3 * served_s
    assert served_s <= times["waiting_s"]["a"]["envs.serve <-> a.serve"] < 2.5 * served_s
    assert times["site"]["envs"] != times["site"]["a"]
    assert result.bottleneck.startswith("envs is the bottleneck: it answered calls for ")


def calling(service: dict[str, Any]) -> dict[str, Any]:
    """Return a graph whose collector calls a service four times in each firing."""
    a = {"type": f"{SLOW}TimedCaller", "calls": 4}
    return {
        "nodes": {"a": a, "envs": service, "b": f"{SLOW}TimedNode"},
        "edges": ["a <-> envs", "a -> b"],
    }


def test_the_time_of_a_service_on_the_same_site_is_its_own(tmp_path: Path) -> None:
    graph = calling({"type": f"{SLOW}TimedService", "each_s": 0.001})
    result, times = run_graph(graph, "serial", tmp_path / "r")
    served_s = ROUNDS * 4 * 0.001
    assert served_s <= times["busy_s"]["envs"] <= result.wall_s
    assert times["busy_s"]["a"] < 0.5 * served_s
    assert result.bottleneck.startswith("envs is the bottleneck: it answered calls for ")
    assert result.bottleneck.endswith("); let it work less than 1 ms")


def test_a_service_that_calls_another_one_does_not_count_its_time(tmp_path: Path) -> None:
    graph = calling({"type": f"{SLOW}RelayingService"})
    graph["nodes"]["inner"] = {"type": f"{SLOW}TimedService", "each_s": 0.001}
    graph["edges"].append("envs <-> inner")
    _, times = run_graph(graph, "serial", tmp_path / "r")
    served_s = ROUNDS * 4 * 0.001
    assert times["busy_s"]["inner"] >= served_s
    assert times["busy_s"]["envs"] + times["busy_s"]["a"] < 0.5 * served_s


def test_the_time_of_a_part_is_shown(tmp_path: Path) -> None:
    graph = calling({"type": f"{SLOW}TimedService"})
    graph["nodes"]["a"]["part_s"] = 0.002
    result, times = run_graph(graph, "serial", tmp_path / "r")
    assert ROUNDS * 0.002 <= times["parts_s"]["a"]["thinking"] <= times["busy_s"]["a"]
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


def test_waits_in_a_call_are_not_its_time() -> None:
    calls, site = ServiceCalls(), SiteState()

    def wait() -> None:
        site.last_fired_s += 5.0  # as `SiteWaits` does after a wait of five seconds

    measured(wait, calls, site)()
    assert calls.busy_s == pytest.approx(-5.0, abs=1.0)
