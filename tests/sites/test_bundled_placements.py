"""The bundled graphs have equal results in every placement.

`python -m tests.sites.matrix` runs more: every graph, in every placement, to every kind of cut.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.errors import NodeError
from tests.graphs.test_bundled_graphs import OTHER_ENVS
from tests.sites.bundled_cases import (
    COMPARED,
    CUTS,
    DISTINCT,
    Case,
    describe_difference,
    run_case,
    why_not_comparable,
)
from tests.sites.perturbed_environment import perturbed_environment
from tests.sites.run_comparison import Results

PLACEMENTS = ["threads", "processes", "mixed"]
OFF_POLICY = [graph for graph in COMPARED if Case(graph, "iters").is_off_policy]


@pytest.fixture
def perturbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Perturb child processes, and return the folder in which each leaves a file."""
    marks = tmp_path / "marks"
    marks.mkdir()
    for name, value in perturbed_environment(marks).items():
        monkeypatch.setenv(name, value)
    return marks


def compare(folder: Path, case: Case, *placements: str) -> Results:
    """Compare the results of a case in these placements, and return them."""
    if why := why_not_comparable(case.graph):
        pytest.skip(f"{case.graph}: {why}")
    serial = run_case(case, "serial", folder / "serial")
    assert serial["status"] == ("solved" if case.cut == "verdict" else "finished")
    for placement in placements:
        other = run_case(case, placement, folder / placement)
        differs = describe_difference(
            serial, other, folder / "serial" / "r", folder / placement / "r"
        )
        assert not differs, f"{case}, {placement}: {differs}"
    return serial


def test_results_are_equal_in_every_placement(perturbed: Path, tmp_path: Path) -> None:
    serial = compare(tmp_path, Case("cartpole_dqn", "iters"), *PLACEMENTS)
    assert serial["train_iters"] == 30
    assert serial["metrics.jsonl"]
    pids, hashes = zip(*(mark.name.split("-", 1) for mark in perturbed.iterdir()), strict=True)
    assert len(set(pids)) >= 4
    assert len(set(hashes)) >= 2


def cases_of_turn(turn: int, graphs: list[str], replicas: int = 1, lag: int = 0) -> list[Case]:
    """Return a case of each graph. In three turns each graph has each kind of cut."""
    return [
        Case(graph, CUTS[(number + turn) % 3], replicas, lag if graph in OFF_POLICY else 0)
        for number, graph in enumerate(graphs)
    ]


def every_other(cases: list[Any], first: int = 0) -> list[Any]:
    """Return the cases as parameters; CI runs every other one, from `first` on."""
    marks = [() if number % 2 == first else pytest.mark.exhaustive for number in range(len(cases))]
    return [pytest.param(case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


QUICK = {  # one graph for each kind of nodes
    *(
        "cartpole_dqn",
        "cartpole_dqn_per",
        "cartpole_dqn_gail",
        "cartpole_ppo",
        "cartpole_reinforce",
    ),
    *("cartpole_ppo_group", "cartpole_sqil", "cartpole_bc", "pendulum_ppo", "twostep_qmix"),
}
IN_THREADS = [
    pytest.param(case, marks=[] if case.graph in QUICK else [pytest.mark.slow])
    for case in cases_of_turn(0, COMPARED)
    if case.graph not in {"crazyclimber_ppo", *OTHER_ENVS}  # the games of the former load slowly
]


@pytest.mark.parametrize("case", IN_THREADS, ids=str)
def test_every_graph_has_equal_results_in_threads(case: Case, tmp_path: Path) -> None:
    compare(tmp_path, case, "threads")


@pytest.mark.slow
@pytest.mark.parametrize("case", every_other(cases_of_turn(1, DISTINCT)), ids=str)
def test_every_graph_has_equal_results_in_processes(
    case: Case, perturbed_processes: None, tmp_path: Path
) -> None:
    compare(tmp_path, case, "processes")


@pytest.mark.slow
@pytest.mark.parametrize("case", every_other(cases_of_turn(2, DISTINCT, 3, 1), 1), ids=str)
def test_replicas_have_equal_results_in_a_mixed_placement(
    case: Case, perturbed_processes: None, tmp_path: Path
) -> None:
    compare(tmp_path, case, "mixed")


@pytest.mark.slow
# The others are in `tests.sites.matrix`.
@pytest.mark.parametrize("graph", every_other([g for g in DISTINCT if g in OFF_POLICY][1::2]))
def test_lags_have_equal_results_in_a_mixed_placement(
    graph: str, perturbed_processes: None, tmp_path: Path
) -> None:
    compare(tmp_path, Case(graph, "steps", lag=2), "mixed")


@pytest.mark.slow
def test_a_complete_training_is_equal_in_processes(tmp_path: Path) -> None:
    graph = flowrl.load("cartpole_dqn")
    runs = [graph.run(placement=p, seed=4, out=tmp_path / p) for p in ("serial", "processes")]
    assert [run.status for run in runs] == ["solved", "solved"]
    assert len({run.digest for run in runs}) == 1


@pytest.mark.slow
def test_an_error_of_a_node_in_a_process_is_reported_as_the_nodes(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(
        "import flowrl\nfrom flowrl import Batch\n\n"
        "@flowrl.as_node\ndef fails(data: Batch) -> Batch:\n    return data['no such column']\n"
    )
    graph = tmp_path / "g.yaml"
    graph.write_text(
        "extends: cartpole_dqn\nnodes:\n  bad: {type: 'bad:fails'}\n"
        "edges:\n  - collector -> bad -> buffer\n"
    )
    with pytest.raises(NodeError, match=r"node 'bad', firing 0 .*KeyError.*no such column"):
        flowrl.load(graph).run(placement="bad=process", out=tmp_path / "r")
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["status"] == "failed"


@pytest.mark.slow  # tests/sites/test_faults.py does the same with nodes that import less
def test_a_killed_process_ends_the_run_and_is_named(tmp_path: Path) -> None:
    words = ["run", "cartpole_dqn", "--placement", "collector=process", "--json", "--out", "r"]
    run = subprocess.Popen(
        [sys.executable, "-m", "flowrl", *words, "--set", "evaluator.stop_value=null"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    metrics = tmp_path / "r" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size):
        assert time.monotonic() < deadline
        time.sleep(0.05)  # until it is at work
    [child] = children.read_text().split()
    os.kill(int(child), signal.SIGKILL)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 1
    assert json.loads(out)["status"] == "failed"
    assert "site 'process:collector' has ended: its process was killed by SIGKILL" in err
    assert not Path(f"/proc/{child}").exists()
