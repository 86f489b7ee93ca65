"""`flowrl league` and `flowrl tournament` on the run of a real league, whose matches are played again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import flowrl
from flowrl.cli.main import main
from flowrl.runs.league_files import read_league
from flowrl.runs.league_report import LeagueReport
from tests.nodes.league.test_league import league_graph

PAYOFF = Path("league") / "payoff.jsonl"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "league"
    collector = {"save_versions": True, "opponents": [{"type": "random"}]}
    flowrl.load(league_graph(collector, {"scripted": ["chance"]})).run(
        train_iters=5, out=out, quiet=True
    )
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "league"))


def test_a_real_league_is_read(trained: Path) -> None:
    report = LeagueReport(read_league(trained))
    assert set(report.players) == {"chance@0", "main@0", "main@2", "main@4"}
    assert report.main == "main@4"
    assert report.players["main@4"].parent == "main@2"
    assert len(report.games) == 5 * 24
    assert report.notes() == []


@pytest.mark.parametrize("row", [1, 50, 120])
def test_the_match_of_a_row_is_played_again(
    row: int, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["league", str(trained), "--replay", str(row)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"row {row}: main@")
    assert lines[1].removeprefix("  recorded: ") == lines[2].removeprefix("  replayed: ")
    assert lines[3] == "the result is equal"


def test_without_a_number_the_newest_match_is_played_again(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["league", str(trained), "--replay", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["row"], found["equal"]) == (120, True)
    assert found["recorded"] == found["replayed"]


@pytest.mark.slow
def test_another_result_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / PAYOFF).read_text().splitlines()
    changed = json.loads(lines[2])
    changed["score"] = 1.0 if changed["score"] != 1.0 else 0.0
    lines[2] = json.dumps(changed)
    (run / PAYOFF).write_text("".join(f"{line}\n" for line in lines))
    assert main(["league", str(run), "--replay", "3"]) == 1
    assert capsys.readouterr().out.endswith("\nthe result is another one\n")


def test_a_missing_row_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", str(run), "--replay", "121"]) == 2
    assert capsys.readouterr().err.endswith("payoff.jsonl has 120 rows\n")
    (run / PAYOFF).write_text("")
    assert main(["league", str(run), "--replay"]) == 2
    assert capsys.readouterr().err.endswith("payoff.jsonl has no row yet\n")


def test_missing_weights_are_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "league" / "players")
    assert main(["league", str(run), "--replay", "1"]) == 1
    assert "the weights of main@0 were not kept; `save_versions: true`" in capsys.readouterr().err


def test_players_of_a_league_meet_in_a_tournament(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tournament", f"{trained}:main@2", f"{trained}:main@3", str(trained), "--explore"]
    assert main([*words, "--games", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = {rating["player"] for rating in found["ratings"]}
    assert names == {"league:main@2", "league:main@3", "league"}
    assert len(found["games"]) == 3 * 2 * 5
