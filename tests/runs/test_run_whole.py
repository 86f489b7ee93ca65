"""What must hold of every run, whatever its graph: repetition, positions of metrics, honesty of the summary."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import flowrl
from flowrl.checks.check import CheckedGraph, check
from flowrl.graph.loading import load_graph
from flowrl.graph.model import Limits
from flowrl.machine.numerics import reset_numerics, with_torch_threads
from flowrl.runs.folder import read_jsonl
from flowrl.runs.result import RunResult
from flowrl.runs.run import Run
from tests.toys.toy_runs import toy_graph

TOYS = "tests.toys.toy_nodes"
PAIR = f"""
params: {{times: 2}}
ports: {{data: first.data, out: second.out}}
nodes:
  first: {TOYS}:Relay
  second: {{type: '{TOYS}:RateChanger', take: 1, give: '${{times}}'}}
edges: [first -> second]
"""
WHOLE = f"""
about: replicas of a collector, a part-graph of two nodes, a warm-up of two phases, a paced evaluator
nodes:
  c: {{type: '{TOYS}:Source', replicas: 2, steps: 5}}
  pair: {{type: pair.yaml, times: 3}}
  b: {{type: '{TOYS}:Buffer', updates: 2}}
  l: {TOYS}:Learner
  e: {TOYS}:Evaluator
edges:
  - c -> pair -> b -> l
  - l.priorities -> b.priorities
  - l.weights -> c.weights: {{lag: 1}}
  - l.weights -> e: {{every: 6}}
warmup:
  - {{edges: [c -> pair], steps: 30, set: {{c.mode: odd}}}}
  - {{edges: [c -> b], rounds: 2}}
"""


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The graph above as files of the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair.yaml").write_text(PAIR)
    (tmp_path / "whole.yaml").write_text(WHOLE)
    return tmp_path / "whole.yaml"


def run(graph: str | Path, out: str, seed: int | None = None, **limits: Any) -> RunResult:
    return Run(check(load_graph(graph)), out=Path(out), seed=seed, limits=Limits(**limits)).run()


def texts(folder: str) -> dict[str, str]:
    """The texts of a run's folder, without those that contain times."""
    paths = [Path(folder) / "metrics.jsonl", *sorted((Path(folder) / "logs").iterdir())]
    return {path.name: path.read_text() for path in paths}


@pytest.mark.slow
def test_the_resolved_graph_repeats_replicas_part_graphs_and_warm_up(whole: Path) -> None:
    first = run(whole, "a", seed=3, train_iters=20)
    (whole.parent / "pair.yaml").unlink()  # the resolved graph needs no other file
    again = Run(check(load_graph("a/graph.yaml")), out=Path("b")).run()
    assert (again.digest, again.why, again.seed) == (first.digest, first.why, 3)
    assert texts("a") == texts("b")
    assert len(texts("a")) == 1 + len({"c", "c#1", "pair/first", "pair/second", "b", "l", "e"})
    third = Run(check(load_graph("b/graph.yaml")), out=Path("c")).run()
    assert third.digest == first.digest
    whole_again = [Path(f"{run}/graph.yaml").read_text().partition("\n") for run in "bc"]
    assert whole_again[0][2] == whole_again[1][2]  # but for the first line, with the run's name


def test_the_warm_up_is_counted_in_steps_and_in_no_train_iteration(whole: Path) -> None:
    """There are 3 rounds of 10 steps, then 2 rounds more. Then each round learns twice from each of 6 tokens."""
    first = run(whole, "a", train_iters=1)
    assert (first.env_steps, first.train_iters, first.episodes) == (60, 1, 12)
    log = Path("a/logs/c.log").read_text().splitlines()
    assert [line.split()[1] for line in log] == ["odd"] * 3 + ["usual"] * 3


def test_the_seed_decides_and_nothing_else(whole: Path) -> None:
    runs = [run(whole, f"r{k}", seed=seed, train_iters=8) for k, seed in enumerate((0, 0, 1, 2))]
    digests = [result.digest for result in runs]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    assert all(result.deterministic and not result.happened for result in runs)


def test_a_longer_run_begins_as_a_shorter_one(whole: Path) -> None:
    run(whole, "short", train_iters=13)
    run(whole, "long", train_iters=40)
    short, long = texts("short"), texts("long")
    for name in short:
        assert long[name].startswith(short[name]), name
    assert len(long["l.log"]) > len(short["l.log"])


@pytest.mark.slow
def test_every_digest_of_a_run_is_that_of_a_run_that_ends_there(whole: Path) -> None:
    """Each iteration changes the digest, which depends on the weights and not on the graph."""
    digests = [run(whole, f"r{n}", train_iters=n).digest for n in range(1, 6)]
    assert len(set(digests)) == 5


# metrics


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    """A short run of real nodes, with warm-up, evaluations and reports of all three roles."""
    out = tmp_path_factory.mktemp("run") / "r"
    sets = {"learner.log_every_iters": 10, "evaluator.weights.every": 40, "evaluator.episodes": 2}
    graph = flowrl.load("cartpole_dqn", {**sets, "collector.log_every_steps": 100})
    return out, graph.run(train_iters=200, seed=1, out=out)


def of_role(out: Path, role: str) -> list[dict[str, Any]]:
    return [row for row in read_jsonl(out / "metrics.jsonl") if row["role"] == role]


COUNTS = ("env_steps", "episodes", "train_iters")


@pytest.mark.slow
@pytest.mark.parametrize("role", ["collector", "learner", "evaluator"])
def test_positions_of_metrics_never_go_back(role: str, cartpole: tuple[Path, RunResult]) -> None:
    rows = of_role(cartpole[0], role)
    assert len(rows) > 3
    for before, after in pairwise(rows):
        assert all(before[name] <= after[name] for name in COUNTS)
        assert before["firing"] < after["firing"]
    result = cartpole[1]
    last = [rows[-1][name] for name in COUNTS]
    end = [result.env_steps, result.episodes, result.train_iters]
    assert all(a <= b for a, b in zip(last, end, strict=True))


def test_a_learner_reports_at_the_configured_iterations(
    cartpole: tuple[Path, RunResult],
) -> None:
    rows = of_role(cartpole[0], "learner")
    assert [row["train_iters"] for row in rows] == [*range(10, 201, 10)]
    assert [row["firing"] for row in rows] == [*range(9, 200, 10)]


def test_env_steps_are_what_collectors_gave_and_learned_rows_come_after_them(
    cartpole: tuple[Path, RunResult],
) -> None:
    out, result = cartpole
    graph = check(load_graph(out / "graph.yaml")).require_sound().graph
    [spec] = [spec for spec in graph.nodes.values() if spec.cls.role == "collector"]
    n_sample = spec.config.n_sample
    for row in read_jsonl(out / "metrics.jsonl"):
        assert row["env_steps"] % n_sample == 0
        assert row["episodes"] <= row["env_steps"]
    assert result.env_steps % n_sample == 0
    firings = [row["firing"] for row in of_role(out, "collector")]
    steps = [row["env_steps"] for row in of_role(out, "collector")]
    assert [(firing + 1) * n_sample for firing in firings] == steps


def test_the_best_return_of_the_summary_is_the_best_evaluation(
    cartpole: tuple[Path, RunResult],
) -> None:
    out, result = cartpole
    returns = [row["return_mean"] for row in of_role(out, "evaluator")]
    assert (result.best_return, result.eval_return) == (max(returns), returns[-1])
    at = [row["train_iters"] for row in of_role(out, "evaluator")]
    assert at == [40, 80, 120, 160, 200]


# timings


def test_timings_add_up_to_no_more_than_the_time_that_passed(
    cartpole: tuple[Path, RunResult],
) -> None:
    out, result = cartpole
    rows = read_jsonl(out / "timings.jsonl")
    for row in rows:
        assert sum(row["busy_s"].values()) <= row["wall_s"] <= result.wall_s + 1e-3
    for before, after in pairwise(rows):
        assert before["wall_s"] <= after["wall_s"]
        assert all(before["busy_s"][key] <= after["busy_s"][key] for key in before["busy_s"])
    busiest = max(rows[-1]["busy_s"], key=lambda key: rows[-1]["busy_s"][key])
    assert result.bottleneck.startswith(busiest)
    assert result.env_steps_per_s == pytest.approx(result.env_steps / result.training_s, rel=0.01)


# threads


class SeesThreads(flowrl.Node):
    """Records how many threads torch has while the node is made and while it fires."""

    data = flowrl.In("samples")

    def setup(self) -> None:
        self.made = torch.get_num_threads()

    def fire(self, data: Any) -> None:
        self.ctx.metrics({"made": self.made, "fired": torch.get_num_threads()})


@pytest.mark.parametrize("threads", [1, 2])
def test_the_graphs_torch_threads_reach_torch(threads: int, tmp_path: Path) -> None:
    graph = toy_graph({"c": "Source"}, ["c -> s"], torch_threads=threads)
    graph["nodes"]["s"] = {"type": f"{__name__}:SeesThreads"}
    reset_numerics(3 - threads)
    try:
        flowrl.load(graph, {"limits.rounds": 1}).run(out=tmp_path / "r")
    finally:
        reset_numerics(1)
    [row] = read_jsonl(tmp_path / "r" / "metrics.jsonl")
    assert (row["made"], row["fired"]) == (threads, threads)


@pytest.mark.parametrize("placement", ["serial", "threads"])
def test_a_nodes_torch_threads_reach_torch_in_its_firings_alone(
    placement: str, tmp_path: Path
) -> None:
    graph = toy_graph({"c": "Source"}, ["c -> s, t, u"])
    sees = {"type": f"{__name__}:SeesThreads"}
    graph["nodes"] |= {
        "s": {**sees, "torch_threads": 3},
        "t": sees,
        "u": {**sees, "torch_threads": 2},
    }
    reset_numerics(1)
    try:
        flowrl.load(graph, {"limits.rounds": 2}).run(out=tmp_path / "r", placement=placement)
    finally:
        reset_numerics(1)
    rows = read_jsonl(tmp_path / "r" / "metrics.jsonl")
    found = {(row["node"], row["made"], row["fired"]) for row in rows}
    assert len(rows) == 6
    assert found == {("s", 1, 3), ("t", 1, 1), ("u", 1, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["threads", "processes"])
def test_bits_with_several_threads_do_not_depend_on_the_placement(
    placement: str, tmp_path: Path
) -> None:
    wide = {"learner.torch_threads": 2, "policy.model.hidden": [512, 512]}
    graph = flowrl.load("cartpole_ppo", wide)
    how: dict[str, Any] = {"train_iters": 2, "quiet": True}
    digests = {
        graph.run(out=tmp_path / p, placement=p, **how).digest for p in ("serial", placement)
    }
    assert len(digests) == 1


def test_a_firing_that_fails_gives_the_threads_back() -> None:
    threads = torch.get_num_threads()

    def fail() -> None:
        assert torch.get_num_threads() == threads + 1
        raise ValueError("it failed")

    with pytest.raises(ValueError, match="it failed"):
        with_torch_threads(fail, threads + 1)()
    assert torch.get_num_threads() == threads


# the summary is honest


def summary(folder: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def graph_with(option: dict[str, Any]) -> CheckedGraph:
    edges = ["c -> l", {"l.weights -> c.weights": option}]
    return flowrl.load(toy_graph({"c": "Source", "l": "Learner"}, edges)).check()


@pytest.mark.parametrize(
    ("option", "deterministic"), [({"lag": 1}, True), ({"lag": 0}, True), ({"latest": True}, False)]
)
def test_the_summary_says_whether_the_graph_is_deterministic(
    option: dict[str, Any], deterministic: bool, tmp_path: Path
) -> None:
    graph = graph_with(option)
    result = Run(graph, out=tmp_path / "r", limits=Limits(rounds=3)).run()
    assert result.deterministic is graph.deterministic is deterministic
    assert summary(tmp_path / "r")["deterministic"] is deterministic
    assert bool(graph.reasons) is not deterministic


def test_ignored_failures_are_in_the_summary_and_make_the_run_nondeterministic(
    tmp_path: Path,
) -> None:
    nodes = {
        "c": "Source",
        "l": "Learner",
        "f": {"type": "FailingNode", "firing": 1, "on_failure": "ignore"},
    }
    graph = flowrl.load(toy_graph(nodes, ["c -> l", "c -> f"]))
    result = graph.run(out=tmp_path / "r", train_iters=4)
    assert (result.status, result.train_iters) == ("finished", 4)
    assert result.deterministic is False
    assert any("ZeroDivisionError: no more" in line for line in result.happened)
    assert summary(tmp_path / "r")["happened"] == list(result.happened)
