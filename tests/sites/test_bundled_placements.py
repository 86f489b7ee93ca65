"""The promise, on the bundled graphs: the same graph and seed give the same bits in every placement."""

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
from flowrl.errors import NodeError

MIXED = "collector=process,evaluator=thread"


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
        "best": (folder / "checkpoints" / "best.safetensors").read_bytes(),
    }


@pytest.mark.parametrize("graph", ["cartpole_dqn", "cartpole_dqn_per"])
@pytest.mark.parametrize("placement", ["threads", "processes", MIXED])
def test_a_placement_cannot_be_seen_in_the_result(
    graph: str, placement: str, tmp_path: Path
) -> None:
    run = {"seed": 4, "train_iters": 100}
    serial = outcome(tmp_path / "a", graph, "serial", **run)
    assert serial["train_iters"] == 100
    assert outcome(tmp_path / "b", graph, placement, **run) == serial


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["threads", "processes", MIXED])
@pytest.mark.parametrize(
    ("graph", "run"),
    [
        ("cartpole_dqn", {"steps": 6000}),
        ("cartpole_dqn", {}),  # until the verdict
        ("cartpole_ppo", {}),
        ("cartpole_dqn_rnd", {"train_iters": 200}),
        ("cartpole_dqn_demos", {"train_iters": 200}),
        ("cartpole_dqn", {"train_iters": 200, "sets": {"collector.replicas": 3}}),
        ("cartpole_dqn", {"train_iters": 200, "sets": {"collector.weights.lag": 1}}),
        (
            "cartpole_dqn",
            {"train_iters": 200, "sets": {"collector.weights.lag": 2, "collector.replicas": 3}},
        ),
    ],
)
def test_no_limit_replica_or_lag_lets_a_placement_be_seen(
    graph: str, run: dict[str, Any], placement: str, tmp_path: Path
) -> None:
    serial = outcome(tmp_path / "a", graph, "serial", seed=1, **run)
    assert outcome(tmp_path / "b", graph, placement, seed=1, **run) == serial


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
