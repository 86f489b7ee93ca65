"""Tournaments: trained runs are rated by games in their env, and the same seed gives the same games."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.cli.main import main
from flowrl.core.errors import NodeError, RunError, UsageError
from flowrl.ratings.games import DRAW, LOSS, WIN
from flowrl.runs.tournament import Tournament, TournamentGame, play_tournament, score_of

ENV = {
    "type": "pettingzoo",
    "id": "tests.toys.two_sided_games:LargestNumber",
    "agents": "shared",
}
PPO = {"type": "ppo", "minibatch_size": 64, "lr": 0.003, "model": {"hidden": [16]}}


def train(out: Path, train_iters: int = 1, seed: int = 0, **env: Any) -> None:
    graph = {
        "env": {**ENV, **env},
        "policy": PPO,
        "nodes": {
            "envs": {"type": "env_manager", "count": 4},
            "collector": {"type": "sample_collector", "n_sample": 128},
            "learner": {"type": "learner"},
        },
        "edges": ["collector <-> envs", "collector -> learner", "learner -> collector"],
    }
    flowrl.load(graph).run(train_iters=train_iters, seed=seed, out=out, quiet=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "weak")
    train(folder / "other", seed=1)
    train(folder / "strong", train_iters=60)
    return folder


@pytest.fixture
def runs(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


@pytest.mark.slow
def test_the_trained_run_has_the_highest_rating(runs: Path) -> None:
    played = play_tournament(["weak", "strong", "other"], games=20)
    assert len(played.games) == 3 * 2 * 20
    ratings = played.ratings()
    assert ratings[0].player == "strong"
    assert ratings[0].low > max(rating.high for rating in ratings[1:])
    assert played.counts.win_rate("strong", "weak") == 1 - (
        played.counts.win_rate("weak", "strong") or 0
    )
    assert played.env == ENV["id"]
    assert played.notes == ()


@pytest.mark.slow
def test_each_pair_plays_the_same_episodes_from_both_sides(runs: Path) -> None:
    played = play_tournament(["weak", "strong"], games=12, seed=5)
    first = [game for game in played.games if game.player == "weak"]
    second = [game for game in played.games if game.player == "strong"]
    assert [game.seed for game in first] == [game.seed for game in second]
    assert len({game.seed for game in first}) == 12
    # greedy policies of a symmetric game see and do the same on the other side
    assert [game.returns[::-1] for game in first] == [game.returns for game in second]
    assert [game.score for game in first] == [1 - game.score for game in second]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_games(runs: Path) -> None:
    words = (["weak", "strong"], 10, 3, True)
    assert play_tournament(*words) == play_tournament(*words)
    assert play_tournament(["weak", "strong"], 10, 4, True).games != play_tournament(*words).games


@pytest.mark.slow
def test_the_command_prints_a_table_or_one_line_of_json(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tournament", "weak", "strong", "--games", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "2 players in tests.toys.two_sided_games:LargestNumber, 4 games of each pair from each side, seed 0"
    )
    assert " ".join(lines[2].split()) == "player Elo 95 % interval games won drawn lost score"
    assert lines[3].split()[:2] == ["1", "strong"]
    assert lines[6] == "the mean score of the row's player against the column's:"
    assert main(["tournament", "weak", "strong", "--games", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ratings"][0]["player"] == "strong"
    assert found["ratings"][0]["games"] == 8
    assert len(found["games"]) == 8
    assert len({game["seed"] for game in found["games"]}) == 4


def test_many_players_are_shown_in_80_columns() -> None:
    names = [f"a-run-with-a-very-long-name-{k:02}-seed{k}-20260101-120000" for k in range(15)]
    games = tuple(
        TournamentGame(a, b, 0, DRAW, (0.0, 0.0), 1) for a in names for b in names if a != b
    )
    text = str(Tournament(tuple(names), "env", games, 1, 0))
    assert max(map(len, text.splitlines())) <= 80
    assert "15  a-run-with…" in text


@pytest.mark.slow
def test_checkpoints_and_players_of_a_league_are_named_after_a_colon(runs: Path) -> None:
    players = runs / "strong" / "league" / "players"
    players.mkdir(parents=True)
    shutil.copy(runs / "weak" / "checkpoints" / "last.safetensors", players / "main@3.safetensors")
    try:
        played = play_tournament(["strong:last", "strong:main@3", "weak"], games=5)
        assert played.entrants == ("strong:last", "strong:main@3", "weak")
        assert played.counts.win_rate("weak", "strong:main@3") == 0.5
        with pytest.raises(UsageError, match="no player main@4 in its league; known: main@3"):
            play_tournament(["weak", "strong:main@4"])
    finally:
        shutil.rmtree(players.parent)
    with pytest.raises(UsageError, match="no player main@3 in its league; the run has saved none"):
        play_tournament(["weak", "strong:main@3"])


@pytest.mark.slow
def test_wrong_runs_are_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 run cannot play; name two or more"):
        play_tournament(["weak"])
    with pytest.raises(UsageError, match="weak is named twice; name different runs, or different"):
        play_tournament(["weak", "strong", "weak"])
    with pytest.raises(UsageError, match="there is no checkpoint 'first'"):
        play_tournament(["weak", "strong:first"])
    with pytest.raises(UsageError, match="nothing: there is no such run here"):
        play_tournament(["weak", "nothing"])
    with pytest.raises(RunError, match=r"cartpole_dqn: its policy maps .* only runs in envs with"):
        play_tournament(["weak", "cartpole_dqn"])
    with pytest.raises(RunError, match="cartpole_dqn: its env has one row of actions in each step"):
        play_tournament(["cartpole_dqn", "weak"])


def test_another_env_with_the_same_spaces_is_noted(runs: Path, tmp_path: Path) -> None:
    train(tmp_path / "short", max_episode_steps=3)
    played = play_tournament(["weak", str(tmp_path / "short")], games=2)
    [note] = played.notes
    assert note == "short was trained in an env with other settings than those of weak"
    assert " ".join(str(played).split()).endswith(f"note: {note}")
    assert {game.length for game in played.games} == {5}


@pytest.mark.slow
def test_games_that_all_went_the_same_way_are_noted(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.toys.two_sided_games import LargestNumber

    observe = LargestNumber._observations
    monkeypatch.setattr(LargestNumber, "_observations", _first_numbers(observe))
    [note] = play_tournament(["weak", "strong"], games=3).notes
    assert note.startswith("every game of a pair from a side went the same way")
    assert note.endswith("; --explore lets policies draw their actions")
    assert play_tournament(["weak", "strong"], games=1).notes == ()


def _first_numbers(observe: Any) -> Any:
    """A game in which the same numbers come again and again."""

    def observations(self: Any) -> Any:
        self._rng = np.random.default_rng(0)
        return observe(self)

    return observations


def test_an_env_that_fails_is_named_with_the_players(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.toys.two_sided_games import LargestNumber

    def failing(self: Any, actions: Any) -> Any:
        raise ValueError("the board is broken")

    monkeypatch.setattr(LargestNumber, "step", failing)
    with pytest.raises(NodeError, match=r"node 'weak', playing against strong: .*board is broken"):
        play_tournament(["weak", "strong"], games=1)


def test_the_higher_return_wins() -> None:
    assert [score_of(1, 0), score_of(-2, -1), score_of(3, 3)] == [WIN, LOSS, DRAW]
