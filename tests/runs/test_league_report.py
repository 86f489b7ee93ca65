"""What `flowrl league` says of the files of a league, whose players have known strengths here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowrl.cli.main import main
from flowrl.core.errors import RunError, UsageError
from flowrl.ratings.elo import ELO
from flowrl.runs.league_files import read_league
from flowrl.runs.league_report import LeagueReport
from tests.runs.sample_league import PLAYERS, STEP, sample_rows, strength, write_league


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_league(tmp_path_factory.mktemp("runs") / "fighters")


def row(player: str, opponent: str, score: float = 1.0, **more: Any) -> dict[str, Any]:
    """A match of `name@version` against another."""
    names = player.partition("@"), opponent.partition("@")
    return {
        "player": names[0][0],
        "version": int(names[0][2]),
        "opponent": names[1][0],
        "opponent_version": int(names[1][2]),
        "side": 0,
        "seed": 1,
        "score": score,
        "returns": [score, 1 - score],
        "length": 3,
        "firing": 0,
        **more,
    }


def test_known_strengths_lie_in_their_intervals(run: Path) -> None:
    report = LeagueReport(read_league(run))
    fixed = ["hunter@0", "random@0"]
    for label in fixed:
        rating = report.elos[label]
        # the strengths of others are those of all versions that are rated together: half a step earlier
        rated = [report.players[name] for name in report.elos]
        truths = [
            strength(p.name, p.version) - (0.25 if p.name == "main" and p.version else 0)
            for p in rated
        ]
        own = truths[list(report.elos).index(label)]
        truth = 1500 + ELO * (own - sum(truths) / len(truths))
        assert rating.low - 30 < truth < rating.high + 30
    generations = [report.elos[f"main@{STEP * k}"].elo for k in (1, 2, 3, 4)]
    assert generations == sorted(generations)


def test_versions_that_are_not_listed_count_for_the_next_one_that_is(tmp_path: Path) -> None:
    rows = [
        row("main@0", "random@0"),
        row("main@1", "random@0"),
        row("main@100", "random@0"),
        row("main@101", "main@100"),
        row("main@399", "random@0", 0.0),
        row("main@402", "random@0"),
        row("main@409", "main@402"),
    ]
    files = read_league(write_league(tmp_path, rows))
    assert [(game.player, game.opponent) for game in files.games()] == [
        ("main@0", "random@0"),
        ("main@100", "random@0"),
        ("main@100", "random@0"),
        ("main@200", "main@100"),
        ("main@400", "random@0"),
        ("main@409", "random@0"),
        ("main@409", "main@409"),
    ]
    newest = files.listed()["main@409"]
    assert (newest.kind, newest.parent) == ("main", "main@400")
    assert files.main() == "main@409"
    assert LeagueReport(files).self_play == 1


def test_the_command_prints_players_and_ancestry(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dot = tmp_path / "ancestry.dot"
    assert main(["league", str(run), "--dot", str(dot)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines[:-2])) <= 80
    assert lines[0].startswith("8 players, 600 games, of which ")
    assert lines[2].split()[:3] == ["player", "kind", "Elo"]
    assert lines[3].split()[:3] == ["1", "main@449", "main"]
    assert lines[10].split()[:3] == ["8", "random@0", "scripted"]
    assert "'vs main' is the mean score against main@449." in lines
    ancestry = out[out.index("who began") :]
    assert "main@0 (" in ancestry
    assert "├─ hunter@0 (" in ancestry
    assert "└─ main@100 (" in ancestry
    assert lines[-2:] == [str(run / "league" / "payoff.png"), str(dot)]
    assert (run / "league" / "payoff.png").read_bytes().startswith(b"\x89PNG")
    assert '  "main@0" -> "hunter@0";\n' in dot.read_text()
    assert '"hunter@0" [label="hunter@0\\nmain exploiter\\nElo ' in dot.read_text()


def test_json_has_every_player_and_pair(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["games"] == 600
    assert found["main"] == "main@449"
    by_name = {player["player"]: player for player in found["players"]}
    hunter = by_name["hunter@0"]
    assert (hunter["kind"], hunter["parent"]) == ("main_exploiter", "main@0")
    assert hunter["games"] == hunter["won"] + hunter["drawn"] + hunter["lost"]
    assert 0 < hunter["against_main"] < 1
    assert hunter["low"] < hunter["elo"] < hunter["high"]
    assert by_name["main@449"]["trueskill_mean"] > by_name["random@0"]["trueskill_mean"]
    games = sum(pair["games"] for pair in found["pairs"])
    assert games == 600 - found["self_play"]


def test_equal_files_give_equal_pictures(run: Path, tmp_path: Path) -> None:
    pictures = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for picture in pictures:
        assert main(["league", str(run), "-o", str(picture)]) == 0
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
    assert b"<svg" in pictures[0].read_bytes()


def test_an_unfinished_run_is_read_as_far_as_it_is_written(tmp_path: Path) -> None:
    run = write_league(tmp_path, sample_rows(20))
    with (run / "league" / "payoff.jsonl").open("a") as file:
        file.write('{"player": "main", "versi')
    assert len(read_league(run).rows) == 20


def test_a_league_without_a_match_lists_its_players(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_league(tmp_path, [])
    (run / "league" / "payoff.jsonl").unlink()
    assert main(["league", str(run)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("7 players, 0 games, of which 0 against themselves\n")
    assert "payoff.png" not in out


def test_players_that_never_met_are_noted(tmp_path: Path) -> None:
    rows = [row("a@0", "b@0"), row("c@0", "d@0")]
    report = LeagueReport(read_league(write_league(tmp_path, rows, [])))
    assert report.notes() == [
        "ratings of these groups cannot be compared, as no game joins them: a@0, b@0; c@0, d@0"
    ]
    assert report.text().endswith(f"note: {report.notes()[0]}")


def test_only_the_best_are_listed_unless_all_are_asked_for(tmp_path: Path) -> None:
    rows = [row(f"p@{k}", f"p@{k + 1}", 0.0) for k in range(30)]
    players = [
        {"name": "p", "version": k, "kind": "historical", "parent": None, "firing": k}
        for k in range(31)
    ]
    report = LeagueReport(read_league(write_league(tmp_path, rows, players)))
    assert "\n… and 11 more players (--all lists them)\n" in report.text()
    assert "p@0 " in report.text(every_player=True)
    assert "p@0 " not in report.text()


def test_a_very_long_line_of_ancestors_is_shown(tmp_path: Path) -> None:
    players = [
        {
            "name": "p",
            "version": k,
            "kind": "main",
            "parent": f"p@{k - 1}" if k else None,
            "firing": k,
        }
        for k in range(1200)
    ]
    text = LeagueReport(read_league(write_league(tmp_path, [], players))).text(every_player=True)
    assert "p@1198 → p@1199" in text
    assert max(map(len, text.splitlines())) <= 80


def test_ancestors_in_a_circle_do_not_hang(tmp_path: Path) -> None:
    players = [{**PLAYERS[0], "parent": "hunter@0"}, PLAYERS[1]]
    report = LeagueReport(read_league(write_league(tmp_path, [], players)))
    assert "2 players" in report.text()


def test_a_run_without_a_league_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the run has no league, as there is no league/payoff\."):
        read_league(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": 0.7}, "'score' is 0.7; expected 1, 0.5 or 0"),
        ({"score": True}, "'score' is True; expected 1, 0.5 or 0"),
        ({"version": "3"}, "'version' is '3'; expected a whole number"),
        ({"player": ""}, "'player' is ''; expected a text"),
        ({"returns": 3}, "'returns' is 3; expected a list of numbers"),
        ({"returns": ["x"]}, r"'returns' is \['x'\]; expected a list of numbers"),
    ],
)
def test_wrong_values_are_refused_with_their_line(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    run = write_league(tmp_path, [row("a@0", "b@0"), {**row("a@0", "b@0"), **change}])
    with pytest.raises(RunError, match=rf"payoff\.jsonl:2: {message}; the file is damaged"):
        read_league(run)


def test_broken_lines_are_refused(tmp_path: Path) -> None:
    run = write_league(tmp_path, [row("a@0", "b@0")])
    path = run / "league" / "players.jsonl"
    path.write_text("not json\n" + path.read_text())
    with pytest.raises(RunError, match=r"players\.jsonl:1: is not a JSON object"):
        read_league(run)
    path.write_text('{"name": "main"}\n')
    with pytest.raises(RunError, match=r"players\.jsonl:1: 'version' is missing; expected a whole"):
        read_league(run)


def test_another_kind_of_picture_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", str(run), "-o", "payoff.pdf"]) == 2
    assert "league: payoff.pdf: unknown ending '.pdf'; known: .png, .svg" in capsys.readouterr().err
