"""Nondeterministic graphs in every placement: their limits, their accounting of tokens, and free-running sites."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.core.errors import NodeError
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.render.catalogue_text import show_type
from flowrl.render.report import schedule_lines
from flowrl.runs.run import Run
from tests.sites.site_nodes import ProgressLearner
from tests.toys.toy_runs import toy_graph

OWN = "tests.sites.site_nodes"
APART = ["threads", "c=main,l=thread", pytest.param("processes", marks=pytest.mark.slow)]
apart = pytest.mark.parametrize("placement", APART)
everywhere = pytest.mark.parametrize("placement", ["serial", *APART])
evaluator_apart = pytest.mark.parametrize(
    "placement", ["serial", *APART, "c=thread,l=main,e=thread"]
)


def lossy_graph(nodes: Mapping[str, Any], edges: list[Any], **edge: Any) -> dict[str, Any]:
    """Return a graph of a collector `c` with a lossy edge to a learner `l`, and an evaluator `e`."""
    whole = {"c": {"type": "Source", "give": 3}, "l": "Learner", "e": "Evaluator", **nodes}
    options = {"when_full": "drop_oldest", **edge}
    return toy_graph(whole, [{"c -> l": options}, {"l.weights -> e": {"every": 2}}, *edges])


def run_graph(graph: Mapping[str, Any], placement: str, out: Path, **limits: Any) -> dict[str, Any]:
    """Run a graph, and return its summary with the firings of each instance and the number of dropped tokens."""
    run = Run(check(load_data(graph)), placement=placement, out=out, limits=Limits(**limits))
    run.run()
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    drops = [line for line in summary["happened"] if line.endswith("tokens were dropped")]
    summary["dropped"] = int(drops[0].split()[0]) if drops else 0
    summary["fired"] = {node.instance: node.fired for node in run.executor.node_stats()}
    return summary


ENDS = {
    "rounds": {"rounds": 30},
    "steps": {"steps": 300},
    "train iterations": {"train_iters": 25},
    "time": {"time_s": 0.3},
}


@pytest.mark.slow
@evaluator_apart
@pytest.mark.parametrize("limit", ENDS)
def test_every_limit_ends_the_run_and_all_tokens_are_accounted_for(
    limit: str, placement: str, tmp_path: Path
) -> None:
    capacity = 4
    graph = lossy_graph({"c": {"type": "Source", "give": 3}}, [], capacity=capacity)
    found = run_graph(graph, placement, tmp_path / "r", **ENDS[limit])
    fired = found["fired"]
    assert found["status"] == "finished"
    assert not found["deterministic"]
    left = 3 * fired["c"] - found["dropped"] - fired["l"]
    # What still lay on the edge. Between sites it has two queues, one at each end.
    assert 0 <= left <= (capacity if placement == "serial" else 2 * capacity)
    assert fired["e"] >= fired["l"] // 2 - 256  # whose notifications may not have arrived
    if limit == "train iterations":
        assert (found["train_iters"], fired["l"]) == (25, 25)
    if limit in ("rounds", "steps"):
        assert fired["c"] == 30
        assert found["env_steps"] == 300


@evaluator_apart
def test_a_verdict_ends_a_lossy_graph(placement: str, tmp_path: Path) -> None:
    graph = lossy_graph({"e": {"type": "Evaluator", "goal": 8}}, [])
    found = run_graph(graph, placement, tmp_path / "r", time_s=60.0)
    assert found["status"] == "solved"
    assert found["wall_s"] < 30


@pytest.mark.parametrize("placement", ["threads", "c=main,l=main,e=thread,m=thread,f=thread:x"])
def test_a_learner_that_may_lack_tokens_paces_nodes_on_other_sites(
    placement: str, tmp_path: Path
) -> None:
    graph = lossy_graph(
        {"d": "Drain", "m": "StateRelay", "f": {"type": "Evaluator", "goal": 4}, "x": "Drain"},
        ["e -> d", {"l.weights -> m": {"every": 1}}, {"m.mine -> f": {"every": 2}}, "f -> x"],
    )
    found = run_graph(graph, placement, tmp_path / "r", time_s=60.0)
    assert found["status"] == "solved"
    assert found["fired"]["f"] >= 2


def test_a_paced_site_does_not_wait_for_a_site_that_stopped_before_the_pacing_firing(
    tmp_path: Path,
) -> None:
    slow = "tests.sites.slow_nodes:TimedNode"
    nodes = {
        "c": {"type": "Source", "give": 10},
        "t": {"type": slow, "each_s": 0.01},  # before the learner: it learns on beyond the cut
        "l": "Learner",
        "quick": slow,
        "m": "StateRelay",  # is paced by the learner where all rounds end soon
        "slow": {"type": slow, "each_s": 0.02},
        "j": "Evaluator",  # is paced by `m` where the last round takes long
    }
    edges: list[Any] = [
        {"c -> t": {"when_full": "drop_oldest", "capacity": 100}},
        *("t -> l", "c -> quick", "c -> slow"),
        *({"l.weights -> m": {"every": 1}}, {"m.mine -> j": {"every": 1}}),
    ]
    placement = "c=thread,t=main,l=main,quick=thread:p,m=thread:p,slow=thread:q,j=thread:q"
    found = run_graph(toy_graph(nodes, edges), placement, tmp_path / "r", rounds=2)
    assert (found["status"], found["fired"]["slow"]) == ("finished", 20)


@pytest.mark.slow
@everywhere
def test_a_consumer_without_tokens_uses_no_cpu_time(placement: str, tmp_path: Path) -> None:
    graph = lossy_graph({"c": f"{OWN}:SlowCollector", "l": f"{OWN}:CpuTimeLearner"}, [])
    began_s = time.perf_counter()
    found = run_graph(graph, placement, tmp_path / "r", rounds=15)
    assert found["fired"]["c"] == 15
    assert found["fired"]["l"] >= 10  # the last may come too late
    lines = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    cpu_s = [row["cpu_s"] for row in map(json.loads, lines) if "cpu_s" in row]
    assert cpu_s[-1] - cpu_s[0] < 0.5 * (time.perf_counter() - began_s)


@apart
def test_a_slow_consumer_of_a_lossy_edge_does_not_block_its_collector(
    placement: str, tmp_path: Path
) -> None:
    graph = lossy_graph({"l": f"{OWN}:SlowLearner"}, [], capacity=2)
    found = run_graph(graph, placement, tmp_path / "r", steps=4000, time_s=60.0)
    assert found["env_steps"] == 4000
    assert found["fired"]["l"] < 200  # each takes 50 ms
    assert found["dropped"] > 800


@everywhere
@pytest.mark.parametrize("lag", [0, 2])
def test_a_collector_does_not_wait_for_weights_of_dropped_tokens(
    lag: int, placement: str, tmp_path: Path
) -> None:
    graph = lossy_graph({}, [{"l.weights -> c.weights": {"lag": lag}}], capacity=3)
    found = run_graph(graph, placement, tmp_path / "r", rounds=60)
    assert found["fired"]["c"] == 60
    log = (tmp_path / "r" / "logs" / "c.log").read_text().splitlines()
    saw = [int(line.split()[-1]) for line in log if " saw " in line]
    assert saw[0] == 0
    assert saw == sorted(saw)
    assert saw[-1] <= found["fired"]["l"]


LATEST_GRAPH = toy_graph(
    {"c": "Source", "l": "Learner"}, ["c -> l", {"l.weights -> c.weights": {"latest": True}}]
)


@everywhere
def test_latest_versions_never_decrease(placement: str, tmp_path: Path) -> None:
    found = run_graph(LATEST_GRAPH, placement, tmp_path / "r", train_iters=200)
    assert found["train_iters"] == 200
    log = (tmp_path / "r" / "logs" / "c.log").read_text().splitlines()
    saw = [int(line.split()[-1]) for line in log if " saw " in line]
    assert saw == sorted(saw)
    assert saw[-1] > 0


def test_the_summary_says_how_many_versions_a_latest_reader_skipped(tmp_path: Path) -> None:
    graph = toy_graph(
        {
            "c": "Source",
            "l": "Learner",
            "g": {"type": "RateChanger", "take": 50},
            "f": "StateFollower",
        },
        ["c -> l, g", "g -> f", {"l.weights -> f.weights": {"latest": True}}],
    )
    found = run_graph(graph, "f=thread,g=thread", tmp_path / "r", rounds=4)
    [line] = [line for line in found["happened"] if line.startswith("l.weights -> f.weights")]
    assert "the newest version, of which up to " in line
    assert int(line.split(" passed")[0].split()[-1]) >= 20


@pytest.mark.parametrize("reader", ["x.weights", "f.weights"])
def test_a_latest_reader_that_seldom_fires_does_not_block_its_source(
    reader: str, tmp_path: Path
) -> None:
    graph = toy_graph(
        {"c": "Source", "l": "Learner", "g": {"type": "RateChanger", "take": 400}, "f": "StateFollower",
         "x": "StateFollower"},
        ["c -> l, g, x", "g -> f", {"l.weights -> f.weights": {"latest": reader[0] == "f"}},
         {"l.weights -> x.weights": {"latest": True}}],
    )  # fmt: skip
    found = run_graph(graph, "threads", tmp_path / "r", rounds=2)
    assert found["fired"] == {"c": 800, "l": 800, "g": 2, "f": 2, "x": 800}


@pytest.mark.slow
@everywhere
def test_a_fan_in_with_merge_any_loses_no_token(placement: str, tmp_path: Path) -> None:
    graph = toy_graph(
        {"c": {"type": "Source", "replicas": 3}, "l": "Learner"}, [{"c -> l": {"merge": "any"}}]
    )
    run_graph(graph, placement, tmp_path / "r", rounds=40)
    log = (tmp_path / "r" / "logs" / "l.log").read_text().splitlines()
    took = [int(line.split()[-1]) for line in log]
    assert len(took) == len(set(took)) == 120
    for replica in range(3):  # each replica's own tokens come in their order
        own = [n for n in took if n // 100 == replica]
        assert own == list(range(100 * replica, 100 * replica + len(own)))


def test_a_lag_is_kept_in_a_warm_up_in_which_its_reader_does_not_fire(tmp_path: Path) -> None:
    graph = toy_graph(
        {"c": "Source", "d": "Source", "l": "Learner", "x": "Drain"},
        ["c -> l", "d -> x", {"l.weights -> d.weights": {"lag": 1}}],
        warmup=[{"edges": ["c -> l"], "rounds": 400}],
    )
    found = run_graph(
        graph, "c=thread:a,d=thread:b,x=thread:b,l=thread:a", tmp_path / "r", rounds=3
    )
    assert found["fired"]["l"] == 403
    log = (tmp_path / "r" / "logs" / "d.log").read_text().splitlines()
    assert [int(line.split()[-1]) for line in log if " saw " in line] == [399, 400, 401]


SLOW_SIDE = {  # nodes and edges from the slow to the quick site, where a node may skip firings
    "a stream": ({"x": "Drain"}, ["r -> x"]),
    "a stream with a capacity": ({"x": "Drain"}, [{"r -> x": {"capacity": 1}}]),
    "a stream of any replica": ({"x": "Drain"}, [{"r -> x": {"merge": "any"}}]),
    "a stream into a node that fires on any input": (
        {"x": f"{OWN}:UnrequestedBuffer", "y": "Drain", "z": "Drain"},
        ["r -> z", "d -> x", "x -> y"],
    ),
    "a stream in a paced schedule": (
        {"m": "Learner", "e": "Evaluator", "x": "Drain"},
        ["r -> m", {"m.weights -> e": {"every": 1}}, "e -> x"],
    ),
    "versions that pace an evaluator": (
        {"g": {"type": "RateChanger", "give": 40}, "m": "Learner", "x": "Evaluator"},
        ["r -> g -> m", {"m.weights -> x": {"every": 1}}],
    ),
}


@pytest.mark.parametrize("side", SLOW_SIDE)
@pytest.mark.parametrize("rounds", [8, 30])  # the quick site waits at the cut, or for a lease
def test_a_site_that_waits_for_slower_ones_has_room_for_what_comes_after_the_firings_it_skipped(
    rounds: int, side: str, tmp_path: Path
) -> None:
    ProgressLearner.at[0] = 0
    nodes, edges = SLOW_SIDE[side]
    graph = toy_graph(
        {"d": f"{OWN}:LateCollector", "r": "Relay", "c": "Source", "l": f"{OWN}:ProgressLearner",
         **nodes},
        ["c -> l", {"d -> r": {"when_full": "drop_oldest", "capacity": 40}}, *edges],
    )  # fmt: skip
    places = {name: "slow" if name in "drgmez" else "quick" for name in graph["nodes"]}
    placement = ",".join(f"{name}=thread:{place}" for name, place in places.items())
    found = run_graph(graph, placement, tmp_path / "r", rounds=rounds)
    assert found["fired"]["d"] == found["fired"]["l"] == rounds
    assert found["fired"]["r"] == rounds


# nodes that fire on any input

RATIO_GRAPH = toy_graph(
    {"c": {"type": "Source", "replicas": 2}, "b": f"{OWN}:RatioBuffer", "l": "Learner", "e": "Evaluator"},
    [{"c -> b": {"merge": "any"}}, "b -> l", "l.priorities -> b.priorities",
     {"l.weights -> c.weights": {"latest": True}}, {"l.weights -> e": {"every": 5}}],
)  # fmt: skip


@pytest.mark.slow
@evaluator_apart
@pytest.mark.parametrize("limit", ENDS)
def test_a_buffer_that_fires_on_any_input_keeps_its_ratio(
    limit: str, placement: str, tmp_path: Path
) -> None:
    found = run_graph(RATIO_GRAPH, placement, tmp_path / "r", **ENDS[limit])
    rows = map(json.loads, (tmp_path / "r" / "metrics.jsonl").read_text().splitlines())
    buffer_rows = [row for row in rows if row["node"] == "b"]
    assert all(row["given"] <= 3 * row["inserted"] for row in buffer_rows)
    collected = found["fired"]["c"] + found["fired"]["c#1"]
    assert found["fired"]["l"] <= 3 * collected
    assert buffer_rows[-1]["inserted"] <= collected
    assert buffer_rows[-1]["given"] <= found["fired"]["l"] + 1  # one is asked for at a time
    if limit == "train iterations":
        assert found["train_iters"] == 25
    if limit == "rounds":
        assert found["env_steps"] == 600
    assert not found["dropped"]


@pytest.mark.parametrize("placement", ["threads", "c=main,b=thread,l=main"])
def test_a_buffer_that_ignores_requests_does_not_deadlock_with_priorities(
    placement: str, tmp_path: Path
) -> None:
    graph = toy_graph(
        {"c": "Source", "b": {"type": f"{OWN}:UnrequestedBuffer", "most": 40}, "l": "Learner"},
        ["c -> b -> l", "l.priorities -> b.priorities"],
    )
    found = run_graph(graph, placement, tmp_path / "r", train_iters=400)
    assert found["train_iters"] == 400


def test_a_node_that_fires_on_any_input_is_nondeterministic() -> None:
    found = check(load_data(RATIO_GRAPH))
    assert "b: fires on any input (what comes together depends on speed)" in found.reasons
    assert "every round: c (2 replicas), b, when it can, l, when it can" in schedule_lines(found)
    assert "fires on any input; it gives at most" in show_type(f"{OWN}:RatioBuffer")


def test_a_node_that_fires_on_any_input_may_not_exceed_its_rate(tmp_path: Path) -> None:
    graph = toy_graph({"c": "Source", "b": f"{OWN}:TooManyTokens", "x": "Drain"}, ["c -> b -> x"])
    with pytest.raises(
        NodeError, match=r"output 'out': fire returned 3 tokens; expected a list of at most 2"
    ):
        run_graph(graph, "serial", tmp_path / "r", rounds=3)


def test_a_capacity_below_the_rate_is_reported() -> None:
    graph = toy_graph(
        {"c": "Source", "g": {"type": "RateChanger", "take": 4}, "x": "Drain"},
        [{"c -> g": {"when_full": "drop_oldest", "capacity": 3}}, "g -> x"],
    )
    [problem] = check(load_data(graph)).problems
    assert "its capacity is 3 and g takes 4 at once" in problem.what
