"""A run whose env fails leaves a crash file, and `flowrl replay` makes it fail again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowrl.cli import main

FAILING = [
    "--set",
    "env.id=tests.nodes.failing_envs:Failing",
    "--set",
    "envs.retry_waiting_time_s=0.0",
]


def run(out: Path, faults: str, *more: str) -> int:
    words = [
        "run",
        "cartpole_dqn",
        *FAILING,
        "--set",
        f"env.kwargs={{faults: [{faults}], {more[0]}}}",
    ]
    return main([*words, "--out", str(out), "--train-iters", "5", "--quiet", "--json", *more[1:]])


@pytest.mark.parametrize("placement", ["serial", "processes"])
def test_a_failed_runs_folder_holds_a_crash_file_that_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], placement: str
) -> None:
    where = ["--placement", placement]
    assert run(tmp_path / "run", "raise", "probability: 1.0", *where) == 1
    (crash,) = (tmp_path / "run").glob("crash-envs-*.json")
    told: dict[str, Any] = json.loads(crash.read_text())
    assert told["what"] == "step raised ZeroDivisionError: the simulator fell over"
    capsys.readouterr()
    assert main(["replay", str(crash)]) == 0
    assert "it failed again: ZeroDivisionError" in capsys.readouterr().out


def test_what_is_no_crash_file_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert main(["replay", str(tmp_path / "other.json")]) == 2
    assert "is not a crash file; a failed run writes crash-*.json" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_run_that_began_envs_anew_says_so_in_its_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--set", "envs.max_retry=20", "--set", "evaluator.weights.every=1000"]
    assert run(tmp_path / "run", "raise", "probability: 0.2", *more) == 0
    told = json.loads(capsys.readouterr().out)
    assert not told["deterministic"]
    happened = json.loads((tmp_path / "run" / "summary.json").read_text())["happened"]
    assert any("dropped trajectories" in line for line in happened)
