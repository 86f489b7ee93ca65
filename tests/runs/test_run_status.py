"""The status of an active run shows the activities of its sites, also while they fire or wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flowrl.runs.queries import query_status
from flowrl.runs.status_rates import StatusWindow, rates_between
from flowrl.runs.top import top_text
from flowrl.runs.why import verdict, wait_graph, why_text
from flowrl.runtime.status import Activity, EdgeStats, NodeStats, RunStatus, SiteStatus
from tests.runs.threaded_runs import (
    GATE,
    SLOW,
    activities,
    pair,
    running_in_a_thread,
    wait_for_status,
)

EDGE = "a.data -> b.data"
PROCESSES = pytest.param("processes", marks=pytest.mark.slow)


def all_last(s: float = 1.0) -> Callable[[RunStatus], bool]:
    """Whether the activity of every site has lasted for longer."""
    return lambda status: all(site.activity.for_s > s for site in status.sites)


@pytest.mark.slow
def test_a_node_that_hangs_is_named_in_one_thread(tmp_path: Path) -> None:
    with running_in_a_thread(pair(b={"hangs_in": 5}), tmp_path / "r") as run:
        found = wait_for_status(run, all_last())
    assert activities(found) == {"main": ("firing", "b", "")}
    assert verdict(found).startswith("b has been firing for 1.")
    assert {node.instance: node.fired for node in found.nodes} == {"a": 6, "b": 5}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_a_node_that_hangs_is_named_with_those_that_wait_for_it(kind: str, tmp_path: Path) -> None:
    graph = pair(b={"hangs_in": 40, "each_s": 0.005})
    graph["nodes"]["c"] = {"type": f"{SLOW}TimedNode"}
    graph["edges"].append("b -> c")
    placement = f"a={kind},b={kind},c={kind}"
    with running_in_a_thread(graph, tmp_path / "r", placement) as run:
        found = wait_for_status(run, all_last())
    a, b, c = f"{kind}:a", f"{kind}:b", f"{kind}:c"
    assert activities(found) == {
        a: ("blocked", "a", EDGE),
        b: ("firing", "b", ""),
        c: ("waiting", "c", "b.out -> c.data"),
    }
    assert verdict(found).startswith("all wait for b: b has been firing for ")
    assert wait_graph(found).waits_for == {a: [b], b: [], c: [b]}
    since = f"{found.sites[0].activity.for_s:.1f} s"
    assert f"a has been blocked {since} on {EDGE}, to {b} [{a}]" in why_text(found)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["threads", PROCESSES])
def test_a_slow_consumer_is_what_the_others_are_blocked_on(placement: str, tmp_path: Path) -> None:
    with running_in_a_thread(pair(b={"each_s": 0.02}), tmp_path / "r", placement) as run:
        before = wait_for_status(run, lambda found: _fired(found, "b") > 10)
        after = wait_for_status(run, lambda found: _fired(found, "b") > _fired(before, "b") + 40)
    found = rates_between(before, after)
    shares = {n.instance: (n.firing, n.waiting, n.blocked) for n in found.nodes}
    assert shares["b"][0] > 0.5
    assert shares["a"][2] > 0.5
    assert shares["a"][0] < 0.5
    assert 0 < found.edges[0].tokens_per_s <= 51
    assert found.status.edges[0].bound == 4
    assert 2 <= found.status.edges[0].held <= 4
    assert found.edges[0].age_s > 0.03  # so many tokens, each taken in 0.02 s
    assert found.edges[0].bytes_per_s > 0


@pytest.mark.slow
def test_a_slow_producer_is_what_the_others_wait_for(tmp_path: Path) -> None:
    with running_in_a_thread(pair(a={"each_s": 0.02}), tmp_path / "r", "threads") as run:
        before = wait_for_status(run, lambda found: _fired(found, "b") > 10)
        after = wait_for_status(run, lambda found: _fired(found, "b") > _fired(before, "b") + 40)
    found = rates_between(before, after)
    shares = {n.instance: (n.firing, n.waiting, n.blocked) for n in found.nodes}
    assert shares["a"][0] > 0.5
    assert shares["b"][1] > 0.5
    assert found.status.edges[0].held <= 1
    assert 0 < found.env_steps_per_s <= 55


@pytest.mark.slow
def test_the_shares_of_a_node_alone_on_its_site_are_its_whole_time(tmp_path: Path) -> None:
    with running_in_a_thread(
        pair(a={"each_s": 0.004}, b={"each_s": 0.008}), tmp_path / "r", "threads"
    ) as run:
        before = wait_for_status(run, lambda found: _fired(found, "b") > 10)
        after = wait_for_status(run, lambda found: _fired(found, "b") > _fired(before, "b") + 80)
    for node in rates_between(before, after).nodes:
        whole = node.firing + node.waiting + node.blocked + node.idle
        assert 0.8 < whole < 1.2, node


def test_an_edge_within_a_site_has_a_depth_too(tmp_path: Path) -> None:
    graph = pair(b={"hangs_in": 2})
    with running_in_a_thread(graph, tmp_path / "r") as run:
        (edge,) = wait_for_status(run, all_last(0.2)).edges
    assert (edge.held, edge.bound, edge.sent, edge.taken) == (0, 4, 2, 2)
    assert (edge.bytes, edge.producer_site, edge.consumer_site) == (None, "main", "main")


def test_how_far_data_is_behind_is_counted_in_train_iterations(tmp_path: Path) -> None:
    """With a lag of three, a collector's data is made with weights that are some rounds old."""
    nodes = {"a": {"type": f"{SLOW}TimedCollector"}, "l": "tests.toys.toy_nodes:Learner",
             "b": {"type": f"{SLOW}TimedNode", "hangs_in": 20}}  # fmt: skip
    edges = ["a -> l, b", {"l.weights -> a.weights": {"lag": 3}}]
    with running_in_a_thread({"nodes": nodes, "edges": edges}, tmp_path / "r") as run:
        found = wait_for_status(run, lambda one: _fired(one, "b") == 20)
    behind = {edge.edge: edge.iters_behind for edge in found.edges}
    learned = _fired(found, "l")
    assert learned in (20, 21)  # the learner fires after the taker, or before it
    assert behind.keys() == {"a.data -> l.data", "a.data -> b.data", "l.weights -> a.weights"}
    assert len(set(behind.values())) == 1
    assert behind["a.data -> l.data"] in (
        learned - 17,
        learned - 16,
    )  # it may fire while it is asked


def test_the_table_fits_into_a_narrow_terminal(tmp_path: Path) -> None:
    graph = pair(b={"each_s": 0.01})
    long_name = "a_collector_with_a_name_that_nobody_would_give"
    graph["nodes"][long_name] = graph["nodes"].pop("a")
    graph["edges"] = [f"{long_name} -> b"]
    with running_in_a_thread(graph, tmp_path / "r", "threads") as run:
        before = wait_for_status(run, lambda found: _fired(found, "b") > 5)
        text = top_text(rates_between(before, query_status(run)), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "a_collector_" in text
    assert "…" in text


def _fired(status: RunStatus, instance: str) -> int:
    return next((node.fired for node in status.nodes if node.instance == instance), 0)


def test_a_service_and_a_part_have_rows_of_their_own_in_top(tmp_path: Path) -> None:
    graph = {
        "nodes": {
            "a": {"type": f"{SLOW}TimedCaller", "calls": 2, "part_s": 0.002},
            "envs": {"type": f"{SLOW}TimedService", "each_s": 0.005},
            "b": f"{SLOW}TimedNode",
        },
        "edges": ["a <-> envs", "a -> b"],
    }
    with running_in_a_thread(graph, tmp_path / "r") as run:
        before = wait_for_status(run, lambda found: _fired(found, "a") > 3)
        after = wait_for_status(run, lambda found: _fired(found, "a") > _fired(before, "a") + 20)
    found = rates_between(before, after)
    envs, a = (next(n for n in found.nodes if n.instance == name) for name in ("envs", "a"))
    assert envs.firing > a.firing  # shares of the time depend on what else the machine does
    assert a.parts["thinking"] - 0.05 <= a.firing < 0.4  # they are not read at the same time
    rows = [line.split()[0] for line in top_text(found).splitlines()[3:8]]
    assert rows == ["node", "a", "thinking", "b", "envs"]


@pytest.mark.slow
def test_a_call_that_hangs_is_told_with_its_client(tmp_path: Path) -> None:
    graph = {
        "nodes": {
            "a": f"{SLOW}TimedCaller",
            "envs": {"type": f"{SLOW}TimedService", "each_s": 1.3},
            "b": f"{SLOW}TimedNode",
        },
        "edges": ["a <-> envs", "a -> b"],
    }
    with running_in_a_thread(graph, tmp_path / "r") as run:
        found = wait_for_status(run, all_last(1.1))
    assert found.sites[0].activity.service == "envs"
    assert verdict(found).startswith("a has been firing for 1.")
    assert verdict(found).endswith(" s, in a call of envs")


def test_rates_are_averages_over_some_rounds() -> None:
    def status(s: float) -> RunStatus:
        """A round of 100 env steps ends each 8 s."""
        rounds = int(s // 8)
        activity = Activity("firing", 0.0, "a")
        site = SiteStatus("main", activity, rounds, nodes=(NodeStats("a", "main", rounds, s),))
        counts = (100 * rounds, 0, 0, None, None, (site,), ())
        return RunStatus("g", "serial", 0, "", 1, "running", s, s, *counts)

    window = StatusWindow(status(0.0))
    rates = [window.rates_until(status(float(s))).env_steps_per_s for s in range(1, 110)]
    assert rates[6] == 0
    assert rates[7:] == [pytest.approx(12.5, rel=0.5)] * 102
    assert rates[50:] == [pytest.approx(12.5, rel=0.25)] * 59


def test_a_node_has_no_share_before_its_first_firing() -> None:
    site = SiteStatus("main", Activity("firing", 9.0, "a"), nodes=(NodeStats("a", "main", 0, 9.0),))
    counts = (0, 0, 0, None, None, (site,), ())
    before, after = (
        RunStatus("g", "serial", 0, "", 1, "running", s, s, *counts) for s in (0.0, 10.0)
    )
    assert top_text(rates_between(before, after)).splitlines()[4].split()[:2] == ["a", "-"]


@pytest.mark.parametrize(
    ("wire_bytes", "columns"),
    [
        (None, ["edge", "held", "tokens/s", "bytes/s", "age", "behind"]),
        (4000, ["edge", "held", "tokens/s", "bytes/s", "wire/s", "age", "behind"]),
    ],
)
def test_what_is_sent_to_another_machine_is_shown_where_it_is_known(
    wire_bytes: int | None, columns: list[str]
) -> None:
    def status(s: float, nbytes: int) -> RunStatus:
        edge = EdgeStats(
            *("a.data -> b.data", "stream", "a", "b", "a", "b"),
            *(int(s), int(s), nbytes, wire_bytes and int(wire_bytes * s), 0, 4, None),
        )
        counts = (0, 0, 0, None, None, (), (edge,))
        return RunStatus("g", "p", 0, "", 1, "running", s, s, *counts)

    head, row = top_text(rates_between(status(10.0, 90_000), status(20.0, 190_000))).splitlines()[
        -2:
    ]
    assert head.split() == columns
    shown = ["1", "10k", *(["4.0k"] if wire_bytes else [])]
    assert row.split()[4 : 4 + len(shown)] == shown


@pytest.mark.parametrize("placement", ["serial", "threads", PROCESSES])
def test_a_node_that_takes_long_to_make_is_named(placement: str, tmp_path: Path) -> None:
    graph = pair()
    graph["nodes"]["b"] = {"type": f"{SLOW}SlowToMake"}
    with running_in_a_thread(graph, tmp_path / "r", placement) as run:
        found = wait_for_status(
            run, lambda status: any(site.activity.instance == "b" for site in status.sites)
        )
        GATE.set()
        wait_for_status(run, lambda status: status.status == "running")
    assert found.status == "starting"
    assert "b is still being made" in why_text(found)
