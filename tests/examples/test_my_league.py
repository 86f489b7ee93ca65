"""The game, its self-play and its leagues: they are those of the page, they run, and the rules are as described."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import flowrl

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "my_league"
GRAPHS = ("undercut", "self_play", "league", "exploiter", "dqn_exploiter")


@pytest.fixture
def game(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The env's class, imported as by the graph beside it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return __import__("undercut").Undercut()


def test_the_higher_number_scores_unless_it_is_undercut(game: Any) -> None:
    game.reset(seed=0)
    scores = []
    for numbers in ((4, 1), (4, 3), (4, 4), (1, 2), (1, 5)):
        actions = dict(zip(game.agents, [n - 1 for n in numbers], strict=True))
        observations, rewards, terminated, _, _ = game.step(actions)
        scores.append(round(rewards["north"] * 10))
        assert rewards["south"] == -rewards["north"]
    assert scores == [3, -7, 0, 3, -4]
    assert all(terminated.values())
    np.testing.assert_allclose(observations["south"], [1, 1, 0.2])


def test_the_graphs_of_the_page_are_those_of_the_folder() -> None:
    page = (ROOT / "docs" / "self-play.md").read_text(encoding="utf-8")
    shown = re.findall(r"```yaml\n# (\w+)\.yaml\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in shown] == ["undercut", "self_play", "league"]
    for name, text in shown:
        whole = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
        del whole["about"]
        assert yaml.safe_load(text) == whole
        added = [line for line in text.splitlines() if not line.startswith("extends")]
        assert len(added) <= {"undercut": 9, "self_play": 6, "league": 10}[name]


def test_the_graph_of_the_page_about_leagues_is_that_of_the_folder() -> None:
    page = (ROOT / "docs" / "leagues.md").read_text(encoding="utf-8")
    [(name, text)] = re.findall(r"```yaml\n# (\w+)\.yaml\n(.*?)```", page, re.DOTALL)
    whole = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    del whole["about"]
    assert yaml.safe_load(text) == whole


@pytest.mark.parametrize("name", GRAPHS)
def test_the_graphs_are_sound(name: str) -> None:
    assert not flowrl.load(FOLDER / f"{name}.yaml").check().problems


@pytest.mark.slow
def test_the_player_of_the_league_learns_to_beat_the_bot(tmp_path: Path) -> None:
    changes = {"league.pfsp": 1.0, "league.self_play": 0.0, "league.verification": 0.0}
    graph = flowrl.load(FOLDER / "league.yaml", {**changes, "collector.log_every_steps": 1})
    graph.run(train_iters=40, out=tmp_path / "run", quiet=True)
    lines = (tmp_path / "run/league/payoff.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    late = [row["score"] for row in rows if row["opponent"] == "bot" and row["firing"] >= 25]
    assert len(late) >= 10
    assert np.mean(late) >= 0.8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exploiter", "dqn_exploiter"])
def test_the_league_with_an_exploiter_is_the_same_in_processes(name: str, tmp_path: Path) -> None:
    graph = flowrl.load(FOLDER / f"{name}.yaml")
    runs = [
        graph.run(train_iters=8, out=tmp_path / place, placement=place, quiet=True)
        for place in ("serial", "processes")
    ]
    assert runs[0].digest == runs[1].digest
    payoffs = [(tmp_path / p / "league/payoff.jsonl").read_text() for p in ("serial", "processes")]
    assert payoffs[0] == payoffs[1]
    assert '"player": "hunter"' in payoffs[0]
