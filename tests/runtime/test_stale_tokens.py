"""`max_staleness` with `latest`: stale tokens are dropped, counted and reported in every placement."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flowrl.checks.check import check
from flowrl.graph.loading import load_data
from flowrl.graph.model import Limits
from flowrl.runs.run import Run
from tests.toys.toy_runs import toy_graph

PLACES = ["serial", "threads", "c=thread,l=main", pytest.param("processes", marks=pytest.mark.slow)]
DROPPED = re.compile(
    r"l: (\d+) tokens of c\.data -> l\.data were staler than its max_staleness of (\d+), and dropped"
)


def graph(rounds: int, give: int = 1, **source: Any) -> dict[str, Any]:
    """Return a collector with the newest weights, and a learner that drops tokens older than `rounds`."""
    nodes = {"c": {"type": "Source", "give": give, **source}, "l": "Learner", "x": "Drain"}
    edges = [
        {"c -> l": {"max_staleness": rounds}},
        "c -> x",
        {"l.weights -> c.weights": {"latest": True}},
    ]
    return toy_graph(nodes, edges)


def run_graph(data: dict[str, Any], placement: str, out: Path, **limits: Any) -> dict[str, Any]:
    run = Run(check(load_data(data)), placement=placement, out=out, limits=Limits(**limits))
    run.run()
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    found = [match for line in summary["happened"] if (match := DROPPED.match(line))]
    summary["stale"] = sum(int(match[1]) for match in found)
    summary["fired"] = {node.instance: node.fired for node in run.executor.node_stats()}
    return summary


@pytest.mark.parametrize("placement", PLACES)
def test_every_token_is_taken_or_counted_as_stale(placement: str, tmp_path: Path) -> None:
    found = run_graph(graph(0), placement, tmp_path / "r", rounds=150)
    fired = found["fired"]
    assert fired["c"] == 150
    assert 0 <= fired["c"] - found["stale"] - fired["l"] <= 4  # what still lay on the edge
    ages = token_ages(tmp_path / "r")
    assert max(ages) == 0
    assert len(ages) == fired["l"]


def token_ages(out: Path) -> list[int]:
    """Return the age of the token of each of the learner's firings, in versions."""
    log = (out / "logs" / "c.log").read_text().splitlines()
    saw = [int(line.split()[-1]) for line in log if " saw " in line]
    log = (out / "logs" / "l.log").read_text().splitlines()
    took = [int(line.split()[-1]) for line in log if "] " in line and "tokens" not in line]
    return [fired - saw[token] for fired, token in enumerate(took)]


def test_on_one_site_no_token_is_stale(tmp_path: Path) -> None:
    found = run_graph(graph(0, give=4), "serial", tmp_path / "r", rounds=20)
    # the learner fires four times in a round, with what the round began with
    assert found["stale"] == 0
    assert found["fired"]["l"] == 80


def test_a_token_without_a_version_is_as_old_as_version_0(tmp_path: Path) -> None:
    nodes = {"c": "Source", "d": "Source", "l": "Learner"}
    edges = [
        {"c, d -> l": {"merge": "any", "max_staleness": 1}},
        {"l.weights -> c.weights": {"latest": True}},
    ]
    run = Run(
        check(load_data(toy_graph(nodes, edges))),
        placement="serial",
        out=tmp_path / "r",
        limits=Limits(rounds=10),
    )
    run.run()
    [line] = json.loads((tmp_path / "r" / "summary.json").read_text())["happened"]
    assert line.startswith(
        "l: 8 tokens of c.data, d.data -> l.data were staler than its max_staleness of 1"
    )
    log = (tmp_path / "r" / "logs" / "l.log").read_text()
    assert log.count("were staler than its max_staleness of 1, and dropped") == 8


@pytest.mark.parametrize(
    ("edges", "problem"),
    [
        (
            ["c -> l", {"l.weights -> c.weights": {"latest": True, "max_staleness": 2}}],
            "l.weights -> c.weights: nothing bounds how stale the latest version is; write 'max_staleness' at the "
            "stream into the learner: what is too old is dropped there",
        ),
        (
            [
                {"c -> r": {"max_staleness": 2}},
                "r -> l",
                {"l.weights -> c.weights": {"latest": True}},
            ],
            "c.data -> r.data: r does not know how old its tokens are, which depend on l.weights -> c.weights; "
            "write 'max_staleness' at a stream into l, if it is a learner",
        ),
    ],
)
def test_an_unknown_age_cannot_be_limited(edges: list[Any], problem: str) -> None:
    nodes = {"c": "Source", "r": "Relay", "l": "Learner"} if "r" in str(edges[0]) else {}
    if "r ->" not in str(edges):
        nodes = {"c": "Source", "l": "Learner"}
    [found] = check(load_data(toy_graph(nodes, edges))).problems
    assert problem in str(found)


def test_a_lag_is_checked_before_the_run_and_nothing_is_dropped(tmp_path: Path) -> None:
    lagging = toy_graph(
        {"c": "Source", "l": "Learner"},
        [{"c -> l": {"max_staleness": 1}}, {"l.weights -> c.weights": {"lag": 1}}],
    )
    found = run_graph(lagging, "threads", tmp_path / "r", rounds=30)
    assert found["happened"] == []
    assert found["fired"]["l"] == 30
