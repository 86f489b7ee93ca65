"""Graphs that are not deterministic, in every placement: what holds of them all the same."""

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
from tests.toys.running import tree

OWN = "tests.sites.site_nodes"
APART = ["threads", "c=main,l=thread", pytest.param("processes", marks=pytest.mark.slow)]
apart = pytest.mark.parametrize("placement", APART)
everywhere = pytest.mark.parametrize("placement", ["serial", *APART])
judged_apart = pytest.mark.parametrize("placement", ["serial", *APART, "c=thread,l=main,e=thread"])


def dropping(nodes: Mapping[str, Any], edges: list[Any], **edge: Any) -> dict[str, Any]:
    """A collector `c` that gives to `l` what `l` has time for."""
    whole = {"c": {"type": "Source", "give": 3}, "l": "Learner", "e": "Judge", **nodes}
    options = {"when_full": "drop_oldest", **edge}
    return tree(whole, [{"c -> l": options}, {"l.weights -> e": {"every": 2}}, *edges])


def ran(graph: Mapping[str, Any], placement: str, out: Path, **limits: Any) -> dict[str, Any]:
    """The summary of a run, with how often each instance has fired and how many tokens were lost."""
    run = Run(check(load_data(graph)), placement=placement, out=out, limits=Limits(**limits))
    run.run()
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    lost = [line for line in summary["happened"] if line.endswith("tokens were dropped")]
    summary["dropped"] = int(lost[0].split()[0]) if lost else 0
    summary["fired"] = {account.key: account.fired for account in run.executor.instance_times()}
    return summary


ENDS = {
    "rounds": {"rounds": 30},
    "steps": {"steps": 300},
    "train iterations": {"train_iters": 25},
    "time": {"time_s": 0.3},
}


@judged_apart
@pytest.mark.parametrize("limit", ENDS)
def test_every_limit_ends_it_and_what_was_pushed_is_accounted_for(
    limit: str, placement: str, tmp_path: Path
) -> None:
    graph = dropping({"c": {"type": "Source", "give": 3}}, [], capacity=4)
    found = ran(graph, placement, tmp_path / "r", **ENDS[limit])
    fired = found["fired"]
    assert found["status"] == "finished"
    assert not found["deterministic"]
    left = 3 * fired["c"] - found["dropped"] - fired["l"]
    assert 0 <= left <= 64  # what still lay on the edge
    assert fired["e"] >= fired["l"] // 2 - 256  # of whom it may not have heard
    if limit == "train iterations":
        assert (found["train_iters"], fired["l"]) == (25, 25)
    if limit in ("rounds", "steps"):
        assert fired["c"] == 30
        assert found["env_steps"] == 300


@judged_apart
def test_a_verdict_ends_it(placement: str, tmp_path: Path) -> None:
    graph = dropping({"e": {"type": "Judge", "goal": 8}}, [])
    found = ran(graph, placement, tmp_path / "r", time_s=60.0)
    assert found["status"] == "solved"
    assert found["wall_s"] < 30


@pytest.mark.parametrize("placement", ["threads", "c=main,l=main,e=thread,m=thread,f=thread:x"])
def test_all_that_a_starving_learner_paces_hears_of_it(placement: str, tmp_path: Path) -> None:
    graph = dropping(
        {"d": "Drain", "m": "Mirror", "f": {"type": "Judge", "goal": 4}, "x": "Drain"},
        ["e -> d", {"l.weights -> m": {"every": 1}}, {"m.mine -> f": {"every": 2}}, "f -> x"],
    )
    found = ran(graph, placement, tmp_path / "r", time_s=60.0)
    assert found["status"] == "solved"
    assert found["fired"]["f"] >= 2


def test_who_heard_of_a_firing_does_not_wait_for_a_site_that_stopped_before_it_did(
    tmp_path: Path,
) -> None:
    slow = "tests.sites.slow_nodes:Taker"
    nodes = {
        "c": {"type": "Source", "give": 10},
        "t": {"type": slow, "each_s": 0.01},  # before the learner: it learns on beyond the cut
        "l": "Learner",
        "quick": slow,
        "m": "Mirror",  # is paced by the learner where all rounds end soon
        "slow": {"type": slow, "each_s": 0.02},
        "j": "Judge",  # is paced by `m` where the last round takes long
    }
    edges: list[Any] = [
        {"c -> t": {"when_full": "drop_oldest", "capacity": 100}},
        *("t -> l", "c -> quick", "c -> slow"),
        *({"l.weights -> m": {"every": 1}}, {"m.mine -> j": {"every": 1}}),
    ]
    placement = "c=thread,t=main,l=main,quick=thread:p,m=thread:p,slow=thread:q,j=thread:q"
    found = ran(tree(nodes, edges), placement, tmp_path / "r", rounds=2)
    assert (found["status"], found["fired"]["slow"]) == ("finished", 20)


@everywhere
def test_a_consumer_that_starves_takes_no_time_from_anybody(placement: str, tmp_path: Path) -> None:
    graph = dropping({"c": f"{OWN}:Dripping", "l": f"{OWN}:Timed"}, [])
    began_s = time.perf_counter()
    found = ran(graph, placement, tmp_path / "r", rounds=15)
    assert found["fired"]["c"] == 15
    assert found["fired"]["l"] >= 10  # the last may come too late
    lines = (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()
    cpu_s = [row["cpu_s"] for row in map(json.loads, lines) if "cpu_s" in row]
    assert cpu_s[-1] - cpu_s[0] < 0.5 * (time.perf_counter() - began_s)


@apart
def test_a_slow_consumer_does_not_hold_its_collector_back(placement: str, tmp_path: Path) -> None:
    graph = dropping({"l": f"{OWN}:Sleepy"}, [], capacity=2)
    found = ran(graph, placement, tmp_path / "r", steps=4000, time_s=60.0)
    assert found["env_steps"] == 4000
    assert found["fired"]["l"] < 200  # each takes 50 ms
    assert found["dropped"] > 800


@everywhere
@pytest.mark.parametrize("lag", [0, 2])
def test_weights_that_come_back_wait_for_no_tokens_that_were_dropped(
    lag: int, placement: str, tmp_path: Path
) -> None:
    graph = dropping({}, [{"l.weights -> c.weights": {"lag": lag}}], capacity=3)
    found = ran(graph, placement, tmp_path / "r", rounds=60)
    assert found["fired"]["c"] == 60
    log = (tmp_path / "r" / "logs" / "c.log").read_text().splitlines()
    saw = [int(line.split()[-1]) for line in log if " saw " in line]
    assert saw[0] == 0
    assert saw == sorted(saw)
    assert saw[-1] <= found["fired"]["l"]


LATEST = tree(
    {"c": "Source", "l": "Learner"}, ["c -> l", {"l.weights -> c.weights": {"latest": True}}]
)


@everywhere
def test_latest_weights_only_grow(placement: str, tmp_path: Path) -> None:
    found = ran(LATEST, placement, tmp_path / "r", train_iters=200)
    assert found["train_iters"] == 200
    log = (tmp_path / "r" / "logs" / "c.log").read_text().splitlines()
    saw = [int(line.split()[-1]) for line in log if " saw " in line]
    assert saw == sorted(saw)
    assert saw[-1] > 0


def test_how_stale_the_latest_was_is_told(tmp_path: Path) -> None:
    graph = tree(
        {"c": "Source", "l": "Learner", "g": {"type": "Gear", "take": 50}, "f": "Follower"},
        ["c -> l, g", "g -> f", {"l.weights -> f.weights": {"latest": True}}],
    )
    found = ran(graph, "f=thread,g=thread", tmp_path / "r", rounds=4)
    [line] = [line for line in found["happened"] if line.startswith("l.weights -> f.weights")]
    assert "the newest version, of which up to " in line
    assert int(line.split(" passed")[0].split()[-1]) >= 20


@pytest.mark.parametrize("reader", ["x.weights", "f.weights"])
def test_a_latest_reader_that_hardly_fires_does_not_block_its_source(
    reader: str, tmp_path: Path
) -> None:
    graph = tree(
        {"c": "Source", "l": "Learner", "g": {"type": "Gear", "take": 400}, "f": "Follower",
         "x": "Follower"},
        ["c -> l, g, x", "g -> f", {"l.weights -> f.weights": {"latest": reader[0] == "f"}},
         {"l.weights -> x.weights": {"latest": True}}],
    )  # fmt: skip
    found = ran(graph, "threads", tmp_path / "r", rounds=2)
    assert found["fired"] == {"c": 800, "l": 800, "g": 2, "f": 2, "x": 800}


@everywhere
def test_a_fan_in_of_any_loses_nothing(placement: str, tmp_path: Path) -> None:
    graph = tree(
        {"c": {"type": "Source", "replicas": 3}, "l": "Learner"}, [{"c -> l": {"merge": "any"}}]
    )
    ran(graph, placement, tmp_path / "r", rounds=40)
    log = (tmp_path / "r" / "logs" / "l.log").read_text().splitlines()[1:]
    took = [int(line.split()[-1]) for line in log]
    assert len(took) == len(set(took)) == 120
    for replica in range(3):  # each replica's own tokens come in their order
        own = [n for n in took if n // 100 == replica]
        assert own == list(range(100 * replica, 100 * replica + len(own)))


def test_a_lag_is_kept_through_a_warm_up_in_which_its_reader_is_silent(tmp_path: Path) -> None:
    graph = tree(
        {"c": "Source", "d": "Source", "l": "Learner", "x": "Drain"},
        ["c -> l", "d -> x", {"l.weights -> d.weights": {"lag": 1}}],
        warmup=[{"edges": ["c -> l"], "rounds": 400}],
    )
    found = ran(graph, "c=thread:a,d=thread:b,x=thread:b,l=thread:a", tmp_path / "r", rounds=3)
    assert found["fired"]["l"] == 403
    log = (tmp_path / "r" / "logs" / "d.log").read_text().splitlines()
    assert [int(line.split()[-1]) for line in log if " saw " in line] == [399, 400, 401]


# nodes that fire on any input

BAND = tree(
    {"c": {"type": "Source", "replicas": 2}, "b": f"{OWN}:Band", "l": "Learner", "e": "Judge"},
    [{"c -> b": {"merge": "any"}}, "b -> l", "l.priorities -> b.priorities",
     {"l.weights -> c.weights": {"latest": True}}, {"l.weights -> e": {"every": 5}}],
)  # fmt: skip


@judged_apart
@pytest.mark.parametrize("limit", ENDS)
def test_a_buffer_that_fires_on_any_input_keeps_its_band(
    limit: str, placement: str, tmp_path: Path
) -> None:
    found = ran(BAND, placement, tmp_path / "r", **ENDS[limit])
    rows = map(json.loads, (tmp_path / "r" / "metrics.jsonl").read_text().splitlines())
    band = [row for row in rows if row["node"] == "b"]
    assert all(row["given"] <= 3 * row["inserted"] for row in band)
    collected = found["fired"]["c"] + found["fired"]["c#1"]
    assert found["fired"]["l"] <= 3 * collected
    assert band[-1]["inserted"] <= collected
    assert band[-1]["given"] <= found["fired"]["l"] + 1  # one is asked for at a time
    if limit == "train iterations":
        assert found["train_iters"] == 25
    if limit == "rounds":
        assert found["env_steps"] == 600
    assert not found["dropped"]


@pytest.mark.parametrize("placement", ["threads", "c=main,b=thread,l=main"])
def test_a_buffer_that_gives_unasked_blocks_but_for_the_priorities(
    placement: str, tmp_path: Path
) -> None:
    graph = tree(
        {"c": "Source", "b": {"type": f"{OWN}:Unasked", "most": 40}, "l": "Learner"},
        ["c -> b -> l", "l.priorities -> b.priorities"],
    )
    found = ran(graph, placement, tmp_path / "r", train_iters=400)
    assert found["train_iters"] == 400


def test_a_node_that_fires_on_any_input_is_called_nondeterministic() -> None:
    found = check(load_data(BAND))
    assert "b: fires on any input (what comes together depends on speed)" in found.reasons
    assert "every round: c (2 replicas), b, when it can, l, when it can" in schedule_lines(found)
    assert "fires on any input; what it gives is at most" in show_type(f"{OWN}:Band")


def test_what_such_a_node_gives_is_bounded(tmp_path: Path) -> None:
    graph = tree({"c": "Source", "b": f"{OWN}:Gushing", "x": "Drain"}, ["c -> b -> x"])
    with pytest.raises(
        NodeError, match=r"output 'out': fire returned 3 tokens; expected a list of at most 2"
    ):
        ran(graph, "serial", tmp_path / "r", rounds=3)


def test_a_capacity_below_what_is_taken_at_once_is_told() -> None:
    graph = tree(
        {"c": "Source", "g": {"type": "Gear", "take": 4}, "x": "Drain"},
        [{"c -> g": {"when_full": "drop_oldest", "capacity": 3}}, "g -> x"],
    )
    [problem] = check(load_data(graph)).problems
    assert "its capacity is 3 and g takes 4 at once" in problem.what
