"""Leagues in runs: equal in every placement, continued without a row too many, and every match played again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flowrl
from flowrl.core.checkpoint import read_acting
from flowrl.core.errors import NodeError, RunError
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.runs.match_replay import replay_rows
from flowrl.runs.snapshot_files import snapshot_folders
from flowrl.runs.tournament import play_tournament, read_entrant
from tests.nodes.league.mixed_league import mixed_league
from tests.nodes.league.test_league import league_graph

LEAGUE = ("league/payoff.jsonl", "league/players.jsonl", "metrics.jsonl")


class Dies(Node):
    """Fails as soon as the run of this folder has a snapshot."""

    data = In("match_results")
    run: Path | None = None

    def fire(self, data: Any) -> None:
        if Dies.run is not None and snapshot_folders(Dies.run):
            raise ConnectionError("the machine is gone")


def graph(**more: Any) -> Any:
    collector = {"save_versions": True, "opponents": [{"type": "random"}], "log_every_steps": 1}
    return flowrl.load(league_graph(collector, {"scripted": ["chance"]}, **more))


def files(folder: Path) -> dict[str, Any]:
    players = sorted((folder / "league" / "players").iterdir())
    texts: dict[str, Any] = {name: (folder / name).read_text() for name in LEAGUE}
    found = {path.name: read_acting(path)[0] for path in players}
    weights = {n: {k: a.tobytes() for k, a in s.arrays.items()} for n, s in found.items()}
    return {**texts, **weights}


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LEAGUE[0]).read_text().splitlines()]


@pytest.mark.slow
def test_every_row_of_the_payoff_is_played_again_with_its_result(tmp_path: Path) -> None:
    graph().run(train_iters=3, out=tmp_path / "run", quiet=True)
    found = rows(tmp_path / "run")
    assert len(found) == 3 * 24
    assert {row["opponent"] for row in found} == {"main", "chance"}
    assert len({row["score"] for row in found}) == 3
    assert replay_rows(tmp_path / "run", found) == found


@pytest.mark.slow
def test_a_row_of_a_version_that_was_not_kept_is_an_error(tmp_path: Path) -> None:
    loaded = flowrl.load(league_graph())
    loaded.run(train_iters=4, out=tmp_path / "run", quiet=True)
    found = rows(tmp_path / "run")
    with pytest.raises(RunError, match=r"the weights of main@1 were not kept; `save_versions: tr"):
        replay_rows(tmp_path / "run", [row for row in found if row["version"] == 1])
    first = found[0]
    assert (first["version"], first["opponent_version"]) == (0, 0)
    assert replay_rows(tmp_path / "run", [first]) == [first]
    with pytest.raises(RunError, match="the league has no player 'foo'; it has main"):
        replay_rows(tmp_path / "run", [{**first, "opponent": "foo"}])
    with pytest.raises(RunError, match="has no league in which 'foo' learns"):
        replay_rows(tmp_path / "run", [{**first, "player": "foo"}])


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_a_league_is_the_same_in_every_placement(placement: str, tmp_path: Path) -> None:
    first = graph().run(train_iters=5, out=tmp_path / "serial", quiet=True)
    other = graph().run(train_iters=5, out=tmp_path / placement, placement=placement, quiet=True)
    assert first.digest == other.digest
    assert files(tmp_path / "serial") == files(tmp_path / placement)


@pytest.mark.slow
def test_a_league_of_recurrent_players_is_the_same_in_threads_and_played_again(
    tmp_path: Path,
) -> None:
    """24 matches of two rounds are 9 unrolls of five steps, and three steps wait."""
    policy = {"model": {"type": "gru", "size": 8}, "unroll_steps": 5}
    first = graph(policy=policy).run(train_iters=5, out=tmp_path / "serial", quiet=True)
    other = graph(policy=policy).run(
        train_iters=5, out=tmp_path / "threads", placement="threads", quiet=True
    )
    assert first.digest == other.digest
    assert files(tmp_path / "serial") == files(tmp_path / "threads")
    found = rows(tmp_path / "serial")
    assert replay_rows(tmp_path / "serial", found) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "placement", ["threads", pytest.param("processes", marks=pytest.mark.slow)]
)
def test_players_with_policies_of_their_own_are_the_same_in_every_placement_and_played_again(
    placement: str, tmp_path: Path
) -> None:
    """The main player is a PPO with memory, the exploiter a DQN, which meet in both collectors."""
    runs = [
        flowrl.load(mixed_league()).run(
            train_iters=8, out=tmp_path / place, placement=place, quiet=True
        )
        for place in ("serial", placement)
    ]
    assert runs[0].digest == runs[1].digest
    assert files(tmp_path / "serial") == files(tmp_path / placement)
    found = rows(tmp_path / "serial")
    met = {(row["player"], row["opponent"]) for row in found}
    assert {("main", "hunter"), ("hunter", "main")} <= met
    chosen = [row for row in found if row["opponent"] != row["player"]][::3]
    assert replay_rows(tmp_path / "serial", chosen) == chosen


@pytest.mark.slow
def test_players_with_policies_of_their_own_take_part_in_tournaments(tmp_path: Path) -> None:
    run = tmp_path / "mixed"
    flowrl.load(mixed_league()).run(train_iters=2, out=run, quiet=True)
    played = play_tournament([f"{run}:main@0", f"{run}:hunter@0"], games=3, explores=True)
    assert played.entrants == ("mixed:main@0", "mixed:hunter@0")
    assert len(played.games) == 6
    policies = [type(read_entrant(f"{run}:{n}@0").policy.policy) for n in ("main", "hunter")]
    assert policies == [Ppo, Dqn]


@pytest.mark.slow
@pytest.mark.parametrize("make", [league_graph, pytest.param(mixed_league, marks=pytest.mark.slow)])
def test_a_run_that_died_goes_on_with_the_same_matches(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(Dies, "run", run)
    more: dict[str, Any] = {"snapshots": {"every_rounds": 3}}
    data = make(**more)
    data["nodes"]["dies"] = {"type": f"{__name__}:Dies"}
    data["edges"] = [*data["edges"], "collector.results -> dies"]
    loaded = flowrl.load(data)
    with pytest.raises(NodeError, match="the machine is gone"):
        loaded.run(train_iters=10**6, out=run, quiet=True)
    monkeypatch.setattr(Dies, "run", None)
    iters = 2 * json.loads((run / "summary.json").read_text())["snapshot_rounds"] + 4
    result = flowrl.resume(run, train_iters=iters, placement="threads", quiet=True)
    whole = loaded.run(train_iters=iters, out=tmp_path / "whole", quiet=True)
    assert result.digest == whole.digest
    assert files(run) == files(tmp_path / "whole")
