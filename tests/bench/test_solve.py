"""The comparison with peers: what is run, what is told of what failed, the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import peers, solve
from bench.peers import NotInstalled, Peer
from bench.solve import Contender

ROW = {"solved": True, "wall_s": 2.0, "eval_s": 0.5, "env_steps": 9000, "versions": {"torch": "2"}}


def test_all_contenders_take_turns_seed_by_seed(monkeypatch: Any, capsys: Any) -> None:
    turns: list[tuple[str, int]] = []

    def run(self: Contender, seed: int, cap_s: float) -> dict[str, Any]:
        turns.append((self.name, seed))
        assert cap_s == 7
        return ROW

    monkeypatch.setattr(Contender, "run", run)
    found = solve.main(["2", "7"])
    names = [c.name for c in solve.CONTENDERS]
    assert turns == [(name, seed) for seed in (0, 1) for name in names]
    assert found["table"]["sb3_dqn"]["solved"] == 2
    assert capsys.readouterr().out.count("\n") == 2 + len(names)


def test_one_contender_can_be_chosen(monkeypatch: Any) -> None:
    monkeypatch.setattr(Contender, "run", lambda self, seed, cap_s: ROW)
    assert list(solve.main(["1", "7", "sb3_ppo"])["table"]) == ["sb3_ppo"]


def test_a_run_is_a_process_with_one_thread(monkeypatch: Any) -> None:
    seen: dict[str, Any] = {}

    def run(command: list[str], **options: Any) -> Any:
        seen.update(options, command=command)
        return SimpleNamespace(returncode=0, stdout='a notice\n{"solved": false}\n')

    monkeypatch.setattr(subprocess, "run", run)
    assert Contender("flowrl", "dqn").run(3, 60) == {"solved": False}
    assert seen["command"] == [sys.executable, "-m", "bench.peers.flowrl_solve", "dqn", "3", "60"]
    assert seen["env"]["OMP_NUM_THREADS"] == "1"
    assert seen["timeout"] > 60


@pytest.mark.parametrize(
    ("done", "told"),
    [
        (SimpleNamespace(returncode=1, stderr="Traceback\nKeyError: 'x'\n"), "KeyError: 'x'"),
        (SimpleNamespace(returncode=1, stderr=""), "no message"),
        (subprocess.TimeoutExpired("sb3", 9), "timed out after 9 seconds"),
        (NotInstalled("sb3 cannot be installed: no such version"), "cannot be installed"),
    ],
)
def test_what_fails_is_told_in_its_row(monkeypatch: Any, done: Any, told: str) -> None:
    def run(*_: Any, **__: Any) -> Any:
        if isinstance(done, Exception):
            raise done
        return done

    monkeypatch.setattr(subprocess, "run", run)
    row = Contender("sb3", "dqn").run(0, 60)
    assert told in row["failed"]
    assert solve.summary([row]) == row
    assert told in solve.table({"sb3_dqn": row})


def test_a_table_says_where_a_number_is_a_lower_bound() -> None:
    rows = [ROW, {**ROW, "wall_s": 4.0}, {**ROW, "wall_s": 9.0, "solved": False}]
    found = solve.summary(rows)
    assert (found["solved"], found["runs"], found["median_s"]) == (2, 3, 4.0)
    assert (found["mean_s"], found["train_median_s"]) == (5.0, 3.5)
    assert solve.table({"a": found}).splitlines()[-1] == (
        "| a | 2/3 | ≥ 4.0 | ≥ 5.0 ± 2.9 | ≥ 3.5 | ≥ 9,000 |"
    )
    assert "≥" not in solve.table({"a": solve.summary(rows[:2])})


def test_one_failed_run_leaves_the_numbers_of_the_others() -> None:
    found = solve.summary([{"failed": "killed"}, ROW])
    assert (found["solved"], found["runs"], found["median_s"]) == (1, 2, 2.0)


@pytest.fixture
def pip(monkeypatch: Any, tmp_path: Path) -> list[list[str]]:
    """A pip that installs nothing, and what it was called with."""
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


def test_another_version_of_a_peer_is_installed_anew(pip: list[list[str]]) -> None:
    Peer("some", ("some==1",)).python()
    Peer("some", ("some==2",)).python()
    assert [command[-1] for command in pip] == ["some==1", "some==2"]


def test_a_peer_that_cannot_be_installed_says_why_and_is_tried_again(pip: list[list[str]]) -> None:
    for _ in range(2):
        with pytest.raises(NotInstalled, match="some cannot be installed: no such version"):
            Peer("some", ("broken==1",)).python()
    assert len(pip) == 2
