"""`python -m bench solve`: its runs, its table, and how peers are installed and run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import peers, solve
from bench.peers import Contender, InstallError, Peer

ROW = {
    "solved": True,
    "wall_s": 2.0,
    "eval_s": 0.5,
    "env_steps": 9000,
    "curve": [[9000, 480.0]],
    "versions": {"torch": "2"},
}


def test_all_contenders_run_in_turn_for_each_seed(monkeypatch: Any, capsys: Any) -> None:
    turns: list[tuple[str, int]] = []

    def run_once(contender: Contender, seed: int, time_limit_s: float) -> dict[str, Any]:
        turns.append((contender.name, seed))
        assert time_limit_s == 7
        return ROW

    monkeypatch.setattr(solve, "run_once", run_once)
    results = solve.main(["2", "7"])
    names = [c.name for c in solve.CONTENDERS]
    assert turns == [(name, seed) for seed in (0, 1) for name in names]
    assert results["summaries"]["sb3_cartpole_dqn"]["solved"] == 2
    assert capsys.readouterr().out.count("\n") == 2 + len(names)


def test_one_contender_can_be_chosen(monkeypatch: Any) -> None:
    monkeypatch.setattr(solve, "run_once", lambda *_: ROW)
    assert list(solve.main(["1", "7", "sb3_cartpole_ppo"])["summaries"]) == ["sb3_cartpole_ppo"]


def test_a_run_is_a_process_with_one_thread(monkeypatch: Any) -> None:
    call: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> Any:
        call.update(options, command=command)
        return SimpleNamespace(returncode=0, stdout='a notice\n{"solved": false}\n')

    monkeypatch.setattr(subprocess, "run", run)
    assert solve.run_once(Contender("flowrl", "cartpole_dqn"), 3, 60) == {"solved": False}
    words = ["bench.peers.flowrl_solve", "cartpole_dqn", "3", "60"]
    assert call["command"] == [sys.executable, "-m", *words]
    assert call["env"]["OMP_NUM_THREADS"] == "1"
    assert call["timeout"] > 60


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (SimpleNamespace(returncode=1, stderr="Traceback\nKeyError: 'x'\n"), "KeyError: 'x'"),
        (SimpleNamespace(returncode=1, stderr=""), "no message"),
        (subprocess.TimeoutExpired("sb3", 9), "timed out after 9 seconds"),
        (SimpleNamespace(returncode=0, stdout="a notice\n", stderr=""), "no message"),
        (InstallError("sb3 cannot be installed: no such version"), "cannot be installed"),
    ],
)
def test_a_failure_is_a_row_with_its_reason(monkeypatch: Any, outcome: Any, reason: str) -> None:
    def run(*_: Any, **__: Any) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(subprocess, "run", run)
    row = solve.run_once(Contender("sb3", "dqn"), 0, 60)
    assert reason in row["failed"]
    assert solve.summary([row]) == row
    assert reason in solve.table({"sb3_dqn": row})


def test_the_table_marks_numbers_that_include_an_unsolved_run() -> None:
    rows = [ROW, {**ROW, "wall_s": 4.0}, {**ROW, "wall_s": 9.0, "solved": False}]
    summary = solve.summary(rows)
    assert (summary["solved"], summary["runs"], summary["median_s"]) == (2, 3, 4.0)
    assert (summary["mean_s"], summary["without_eval_median_s"]) == (5.0, 3.5)
    assert solve.table({"a": summary}).splitlines()[-1] == (
        "| a | 2/3 | ≥ 4.0 | ≥ 5.0 ± 2.9 | ≥ 3.5 | ≥ 9,000 |"
    )
    assert "≥" not in solve.table({"a": solve.summary(rows[:2])})


def test_a_summary_leaves_out_failed_runs() -> None:
    summary = solve.summary([{"failed": "killed"}, ROW])
    assert (summary["solved"], summary["runs"], summary["median_s"]) == (1, 2, 2.0)


@pytest.fixture
def pip(monkeypatch: Any, tmp_path: Path) -> list[list[str]]:
    """The calls of a pip that installs nothing."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> Any:
        calls.append(command)
        broken = "broken==1" in command
        return SimpleNamespace(returncode=int(broken), stderr="one\nno such version\n")

    monkeypatch.setattr(peers, "ROOT", tmp_path)
    monkeypatch.setattr(peers, "VENVS", tmp_path / "peers")
    monkeypatch.setattr(peers.subprocess, "run", run)
    monkeypatch.setattr(
        peers.venv, "create", lambda folder, **_: folder.mkdir(parents=True, exist_ok=True)
    )
    return calls


def test_a_peer_is_installed_once(pip: list[list[str]]) -> None:
    peer = Peer("some", ("torch==2", "some==1"))
    assert peer.python() == peer.python()
    assert [command[-2:] for command in pip] == [["torch==2", "some==1"]]


def test_another_version_of_a_peer_is_installed_again(pip: list[list[str]]) -> None:
    Peer("some", ("some==1",)).python()
    Peer("some", ("some==2",)).python()
    assert [command[-1] for command in pip] == ["some==1", "some==2"]


def test_a_failed_installation_is_explained_and_tried_again(pip: list[list[str]]) -> None:
    for _ in range(2):
        with pytest.raises(InstallError, match="some cannot be installed: no such version"):
            Peer("some", ("broken==1",)).python()
    assert len(pip) == 2
