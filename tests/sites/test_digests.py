"""Runs of a bundled graph with the same seed have equal digests, whatever the state of their process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flowrl

GRAPHS = ("cartpole_dqn", pytest.param("cartpole_ppo", marks=pytest.mark.slow))
ITERS = {"cartpole_dqn": 50, "cartpole_ppo": 6}
SHORT = {"evaluator.episodes": 2, "evaluator.weights.every": 3}

PERTURBED_RUN = """
import os, random, sys
import numpy, torch
random.seed({0}); numpy.random.seed({0}); torch.manual_seed({0})
random.random(); numpy.random.rand({0}); torch.rand({0})
import flowrl
flowrl.load(sys.argv[1], {2}).run(seed=5, train_iters={1}, out=sys.argv[2])
os._exit(0)  # torch takes a second to be unloaded
"""


def run_perturbed(graph: str, out: Path, number: int) -> tuple[str, str]:
    """Run a graph in a process with other global random states, and return its digest and metrics."""
    command = [
        sys.executable,
        "-c",
        PERTURBED_RUN.format(number, ITERS[graph], SHORT),
        graph,
        str(out),
    ]
    env = {**os.environ, "PYTHONHASHSEED": str(number)}
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=120)
    summary = json.loads((out / "summary.json").read_text())
    return summary["digest"], (out / "metrics.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
def test_other_global_random_states_and_hash_seeds_change_nothing(
    graph: str, tmp_path: Path
) -> None:
    first, second = (run_perturbed(graph, tmp_path / str(n), n) for n in (1, 4242))
    assert first == second
    assert first[1].count("\n") > 2


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS)
def test_two_runs_in_a_process_are_the_same_and_another_seed_is_not(
    graph: str, tmp_path: Path
) -> None:
    loaded = flowrl.load(graph, SHORT)
    results = [
        loaded.run(seed=seed, train_iters=ITERS[graph], out=tmp_path / str(number))
        for number, seed in enumerate((1, 1, 2))
    ]
    first, again, other = results
    assert first.digest == again.digest != other.digest
    metrics = [(tmp_path / str(n) / "metrics.jsonl").read_text() for n in range(3)]
    assert metrics[0] == metrics[1] != metrics[2]


@pytest.mark.slow
def test_the_resolved_graph_of_a_run_repeats_it(tmp_path: Path) -> None:
    first = flowrl.load("cartpole_dqn", SHORT).run(
        seed=3, set={"learner.policy.lr": 2e-3}, train_iters=30, out=tmp_path / "a"
    )
    again = flowrl.load(tmp_path / "a" / "graph.yaml").run(out=tmp_path / "b")
    assert again.digest == first.digest
    assert again.train_iters == 30
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == (
        tmp_path / "b" / "metrics.jsonl"
    ).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2])
def test_a_graph_with_a_lag_is_deterministic(lag: int, tmp_path: Path) -> None:
    stale = flowrl.load("cartpole_dqn", {**SHORT, "collector.weights.lag": lag})
    digests = {stale.run(train_iters=30, out=tmp_path / str(n)).digest for n in range(2)}
    assert len(digests) == 1


def test_the_evaluator_changes_no_weights(tmp_path: Path) -> None:
    often = flowrl.load("cartpole_dqn", {**SHORT, "evaluator.weights.every": 7})
    a = flowrl.load("cartpole_dqn").run(train_iters=30, out=tmp_path / "a")
    b = often.run(train_iters=30, out=tmp_path / "b")
    assert a.digest == b.digest
