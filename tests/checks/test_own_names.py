"""Nodes act for one of the players of a league, with the weights that the league has for it."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl

pytest.importorskip("pettingzoo")
LEAGUE = "examples/my_league/exploiter.yaml"


def problems(graph: Any, changes: dict[str, Any] | None = None) -> list[str]:
    return [str(problem) for problem in flowrl.load(graph, changes or {}).check().problems]


def test_a_collector_says_for_which_of_several_players_it_plays() -> None:
    [problem] = problems(LEAGUE, {"collector.player": None})
    assert problem == (
        "--set collector.player=null: nodes.collector acts for one of main, hunter, and does not say for which; "
        "give it `player: main`"
    )
    assert not problems("examples/my_league/league.yaml", {"collector.player": None})


def test_a_collector_plays_for_the_player_whose_weights_it_has() -> None:
    [problem] = problems(LEAGUE, {"hunting.player": "main"})
    assert problem == (
        "--set hunting.player=main: nodes.hunting acts for main with the weights of hunter, and league has those of "
        "learner for main; give it `player: hunter`"
    )
    swapped = {"hunting.player": "main", "collector.player": "hunter"}
    assert len(problems(LEAGUE, swapped)) == 2


def test_a_league_of_one_player_has_the_weights_of_its_collector() -> None:
    other = {
        "nodes": {"other": {"type": "learner"}},
        "edges": ["collector -> other -> league.main"],
    }
    found = problems({"extends": "examples/my_league/league.yaml", **other})
    assert [one for one in found if "nodes.collector acts for main with the weights of" in one]


def test_a_league_gets_the_results_of_each_player_by_its_name() -> None:
    edges = ["collector -> league.hunter_results", "hunting -> league.main_results"]
    found = problems({"extends": LEAGUE, "edges": edges})
    assert found == [
        "graph: hunting.results -> league.main_results: these are the results of hunter, and the input is for those of "
        "main; connect what acts for main, or give hunting `player: main`",
        "graph: collector.results -> league.hunter_results: these are the results of main, and the input is for those "
        "of hunter; connect what acts for hunter, or give collector `player: hunter`",
    ]


@pytest.mark.parametrize(
    "changes",
    [{"extends": "examples/my_league/league.yaml", "nodes": {"league": None}}, None],
)
def test_opponents_without_a_league_have_no_effect(changes: Any) -> None:
    alone = {"extends": "examples/my_league/self_play.yaml"}
    opponents = {"collector": {"opponents": [{"type": "random"}]}}
    [problem] = problems(changes or {**alone, "nodes": opponents})
    assert "nodes.collector: 'opponents' has no effect, because the input 'matches' is" in problem


def test_a_league_with_a_mistake_is_one_problem() -> None:
    changes = {"league.snapshot_every_iters": {"main": 10, "x": 3}}
    [problem] = problems(LEAGUE, changes)
    assert "snapshot_every_iters has numbers for main, x" in problem


def test_the_gamma_of_an_opponent_has_no_effect() -> None:
    changes = {"collector.policies.hunter.gamma": 0.5}
    [problem] = problems("examples/my_league/dqn_exploiter.yaml", changes)
    assert "nodes.collector: 'policies.hunter.gamma' has no effect" in problem
