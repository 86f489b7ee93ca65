"""A run whose env fails leaves a crash file, and `flowrl replay` makes it fail again."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowrl.cli import main
from flowrl.nodes.env_managers.env_error import EnvError
from tests.nodes.env_managers.manager_kinds import open_manager

pytestmark = pytest.mark.usefixtures("forked_processes")
FAILING = [
    "--set",
    "env.id=tests.nodes.env_managers.failing_envs:FaultyEnv",
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


@pytest.mark.parametrize("placement", ["serial", "collector=process"])
def test_a_failed_runs_folder_holds_a_crash_file_that_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], placement: str
) -> None:
    where = ["--placement", placement]
    assert run(tmp_path / "run", "raise", "probability: 1.0", *where) == 1
    (crash,) = (tmp_path / "run").glob("crash-envs-*.json")
    crash_data: dict[str, Any] = json.loads(crash.read_text())
    assert crash_data["what"] == "step raised ZeroDivisionError: the simulator fell over"
    hints = json.loads(capsys.readouterr().out)["warnings"]
    assert hints == [f"`flowrl replay {crash}` plays the episode again that failed"]
    assert main(["replay", str(crash)]) == 0
    assert "it failed again: ZeroDivisionError" in capsys.readouterr().out


def test_a_file_that_is_no_crash_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert main(["replay", str(tmp_path / "other.json")]) == 2
    assert (
        "is neither a tape nor a crash file; a failed run writes crash-*.json"
        in capsys.readouterr().err
    )
    assert main(["replay", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.slow
def test_the_summary_counts_restarted_envs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--set", "envs.max_retry=20", "--set", "evaluator.weights.every=1000"]
    assert run(tmp_path / "run", "raise", "probability: 0.2", *more) == 0
    report = json.loads(capsys.readouterr().out)
    assert not report["deterministic"]
    happened = json.loads((tmp_path / "run" / "summary.json").read_text())["happened"]
    assert any("dropped trajectories" in line for line in happened)


def crashed(out: Path, fault: str) -> str:
    """The crash file of an env that failed in this way in its first step, in its own process."""
    failing = "tests.nodes.env_managers.failing_envs:FaultyEnv"
    chaos = {"faults": [fault], "probability": 1.0, "at": 1}
    timeout_s = 0.5 if fault == "hang" else 30.0  # for processes that take long to end
    with open_manager("sync", failing, count=1, step_timeout_s=timeout_s, **chaos) as envs:
        envs.reset()
        with pytest.raises(EnvError) as error:
            envs.advance(np.zeros(1, np.int64))
    (crash,) = error.value.save(out)
    return str(crash)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("exit", "it failed again: its process ended with status 3"),
        ("sys.exit", "it failed again: its process ended with status 1"),
        ("kill", "it failed again: its process was killed by SIGKILL"),
        ("segfault", "it failed again: its process was killed by SIGSEGV"),
        ("hang", "it failed again: it took longer than 0.5 s; the traceback shows where"),
    ],
)
def test_replay_reports_how_an_env_ends_or_hangs_again(
    fault: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    crash = crashed(tmp_path, fault)
    capfd.readouterr()
    assert main(["replay", crash]) == 0
    printed = capfd.readouterr()
    assert message in printed.out
    if fault in ("segfault", "hang"):
        assert "in step" in printed.err  # where it was


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "commands", "shown"),
    [
        ("raise", "p 40 + 2\nq\n", ["42", "it failed again: ZeroDivisionError"]),
        (
            "nan",
            "p 40 + 2\nq\n",
            ["42", "it failed again: InvalidOutputError: the observation is not finite"],
        ),
        ("hang", "p 40 + 2\nq\n", ["42", "hang()", "it failed again: TimeoutError"]),
        ("exit", "p self.t\nq\n", ["stops before the call", "step()", "0"]),
    ],
)
def test_the_debugger_stops_where_an_env_fails_or_before_it_ends_its_process(
    fault: str,
    commands: str,
    shown: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crash = crashed(tmp_path, fault)
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", StringIO("where\n" + commands))
    assert main(["replay", crash, "--pdb"]) == (1 if fault == "exit" else 0)
    printed = capsys.readouterr().out
    assert [text for text in shown if text not in printed] == []


def test_an_episode_that_does_not_fail_again_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    crash = Path(crashed(tmp_path, "raise"))
    crash.write_text(crash.read_text().replace('"probability": 1.0', '"probability": 0.0'))
    assert main(["replay", str(crash)]) == 1
    assert "it did not fail again in 1 steps" in capfd.readouterr().out
