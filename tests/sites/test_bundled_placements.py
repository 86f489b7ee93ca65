"""The promise, on the bundled graphs: the same graph and seed give the same bits in every placement."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.errors import NodeError
from flowrl.source.bundled import bundled_graphs
from tests.graphs.test_bundled_graphs import SHORT

PLACEMENTS = ["threads", "processes", "mixed"]
LIMIT = {"train_iters": 100}
POISON = """
import os, random, sys

def poison():
    seed = int.from_bytes(os.urandom(4), "little")
    random.seed(seed)
    for name in ("numpy", "torch"):
        module = sys.modules.get(name)
        if name == "numpy" and module is not None:
            module.random.seed(seed)
        elif module is not None and hasattr(module, "manual_seed"):
            module.manual_seed(seed)
    open(os.path.join(os.environ["POISONED"], f"{os.getpid()}-{hash('hash')}"), "w").close()

os.register_at_fork(after_in_child=poison)
import numpy
poison()
"""


@pytest.fixture
def poisoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every process begins with global random states and hashes of its own; where each of them left a mark."""
    for folder in ("path", "marks", "cwd"):
        (tmp_path / folder).mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(POISON)
    paths = [str(tmp_path / "path"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    monkeypatch.setenv("POISONED", str(tmp_path / "marks"))
    monkeypatch.chdir(tmp_path / "cwd")  # where a recording graph writes
    return tmp_path / "marks"


def place(graph: str, placement: str) -> str:
    """A placement by its name; mixed: nodes in turn in processes, threads, and where the run was started."""
    if placement != "mixed":
        return placement
    nodes = flowrl.load(graph).check().graph.nodes
    places = zip(
        [n for n, spec in nodes.items() if spec.fires], cycle(["process", "thread", "main"])
    )
    return ",".join(f"{node}={place}" for node, place in places)


def outcome(folder: Path, graph: str, placement: str, **run: Any) -> dict[str, Any]:
    """All that must be equal."""
    sets = run.pop("sets", {})
    result = flowrl.load(graph, sets).run(placement=placement, out=folder, **run)
    told = result.as_dict()
    same = ("status", "why", "env_steps", "train_iters", "episodes", "eval_return", "best_return")
    return {
        **{key: told[key] for key in (*same, "digest", "deterministic")},
        "metrics": (folder / "metrics.jsonl").read_text(),
        "logs": {p.name: p.read_text() for p in sorted((folder / "logs").iterdir())},
        "checkpoints": {p.name: p.read_bytes() for p in (folder / "checkpoints").glob("best*")},
    }


def compare(graph: str, placements: list[str], folder: Path, **run: Any) -> dict[str, Any]:
    """The outcome in all of these placements."""
    sets = run.pop("sets", {})
    found = flowrl.load(graph, sets).check()
    if any(
        "pip install" in problem.hint or "pip install" in problem.what for problem in found.problems
    ):
        pytest.skip(f"{graph}: {found.problems[0].what}")
    if not found.deterministic:
        pytest.skip(f"{graph} is not deterministic: {found.reasons[0]}")
    serial = outcome(folder / "serial", graph, "serial", seed=4, sets=sets, **run)
    for placement in placements:
        np.random.seed(len(placement))
        other = outcome(
            folder / placement, graph, place(graph, placement), seed=4, sets=sets, **run
        )
        for key, value in serial.items():
            assert other[key] == value, f"{placement}: {key}"
    return serial


def test_a_placement_cannot_be_seen_in_the_result(poisoned: Path, tmp_path: Path) -> None:
    serial = compare("cartpole_dqn", PLACEMENTS, tmp_path, **LIMIT)
    assert serial["train_iters"] == LIMIT["train_iters"]
    pids, hashes = zip(*(mark.name.split("-", 1) for mark in poisoned.iterdir()), strict=True)
    assert len(set(pids)) >= 4
    assert len(set(hashes)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("graph", sorted({*bundled_graphs()} - {"cartpole_dqn", *SHORT}))
def test_no_bundled_graph_shows_where_it_runs(graph: str, poisoned: Path, tmp_path: Path) -> None:
    compare(graph, PLACEMENTS, tmp_path, train_iters=30)


VERDICT = {"sets": {"evaluator.stop_value": 9.0}, "steps": 20000}
ON_POLICY = {
    "steps": {"steps": 2000},
    "verdict": VERDICT,
    "replicas": {"train_iters": 40, "sets": {"collector.replicas": 3}},
}
OFF_POLICY = {
    **ON_POLICY,
    "a lag": {"train_iters": 40, "sets": {"collector.weights.lag": 1}},
    "a lag and replicas": {
        "train_iters": 40,
        "sets": {"collector.weights.lag": 2, "collector.replicas": 3},
    },
}
CASES = [
    (graph, name, PLACEMENTS[number % 3])
    for graph, runs in (("cartpole_dqn", OFF_POLICY), ("cartpole_ppo", ON_POLICY))
    for number, name in enumerate(runs)
]


@pytest.mark.slow
@pytest.mark.parametrize(("graph", "name", "placement"), CASES)
def test_no_limit_replica_or_lag_lets_a_placement_be_seen(
    graph: str, name: str, placement: str, tmp_path: Path
) -> None:
    serial = compare(graph, [placement], tmp_path, **OFF_POLICY[name])
    assert serial["status"] == "solved" or name != "verdict"


@pytest.mark.slow
def test_a_whole_training_is_the_same_in_processes(tmp_path: Path) -> None:
    assert compare("cartpole_dqn", ["processes"], tmp_path)["status"] == "solved"


@pytest.mark.slow
@pytest.mark.parametrize("graph", sorted(SHORT))
def test_processes_cannot_be_seen_in_any_env(graph: str, tmp_path: Path) -> None:
    sets = {**SHORT[graph], "evaluator.weights.every": 4, "evaluator.episodes": 2}
    run = {"train_iters": 8, "seed": 1}
    serial = outcome(tmp_path / "a", graph, "serial", **run, sets=sets)
    assert outcome(tmp_path / "b", graph, "processes", **run, sets=sets) == serial


def test_what_a_node_raises_in_a_process_is_told_as_its_own(tmp_path: Path) -> None:
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
        flowrl.load(graph).run(placement="processes", out=tmp_path / "r")
    assert json.loads((tmp_path / "r" / "summary.json").read_text())["status"] == "failed"


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
    out, err = run.communicate(timeout=20)
    assert run.returncode == 1
    assert json.loads(out)["status"] == "failed"
    assert "site 'process:collector' has ended: its process was killed by SIGKILL" in err
    assert not Path(f"/proc/{child}").exists()
