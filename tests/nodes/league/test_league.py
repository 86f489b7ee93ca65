"""The league: who plays whom, which versions are kept, and what is written down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flowrl
from flowrl.core.batch import Batch
from flowrl.core.facts import Surroundings, UnsoundError
from flowrl.core.records import CheckpointRecord, LinesRecord
from flowrl.core.state import State
from flowrl.nodes.collectors.match_results import result_schema
from flowrl.nodes.league.league import PAYOFF_FILE, PLAYERS_FILE, League
from flowrl.nodes.league.matches import (
    FIRST_SCRIPTED,
    ITSELF,
    Assignment,
    assignments,
    opponent_weights,
)

GAME = "tests.nodes.league.games:MatrixGame"
TRIO: dict[str, Any] = {
    "main": "main",
    "rival": "main_exploiter",
    "hunter": "league_exploiter",
}
ONLY_PFSP = {"self_play": 0.0, "pfsp": 1.0, "verification": 0.0}


def weights(version: int) -> State:
    return State({"w": np.array([version], np.float32)}, {"epsilon": 0.5}, version=version)


def results(*rows: tuple[int, int, float], version: int = 0) -> Batch:
    """Results of matches: the opponent, its version, and the score of the player."""
    columns: dict[str, list[Any]] = {
        "version": [version] * len(rows),
        "opponent": [row[0] for row in rows],
        "opponent_version": [row[1] for row in rows],
        "side": [k % 2 for k in range(len(rows))],
        "seed": [*range(len(rows))],
        "score": [row[2] for row in rows],
        "returns": [[row[2], 1 - row[2]] for row in rows],
        "length": [1] * len(rows),
    }
    schema = result_schema(2, 0)
    return Batch(
        {n: np.array(columns[n], c.dtype).reshape(-1, *c.shape) for n, c in schema.items()}
    )


NOTHING = results((ITSELF, 0, 0.5))


def lines(league: League, file: str) -> list[dict[str, Any]]:
    records = [r for r in league.ctx.records if isinstance(r, LinesRecord) and r.file == file]
    return [json.loads(line) for record in records for line in record.lines]


def kept(league: League) -> list[str]:
    return [r.name for r in league.ctx.records if isinstance(r, CheckpointRecord)]


def drawn(league: League, player: str = "main") -> Counter[tuple[int, int]]:
    table = assignments(league.state("matches"), player)
    return Counter((one.opponent, one.version) for one in table)


def test_before_the_first_firing_there_are_no_matches() -> None:
    assert assignments(League().state("matches"), "main") == []


def test_versions_are_kept_every_so_many_train_iterations_and_their_weights_are_sent() -> None:
    league = League(snapshot_every_iters=10, seed=3, **ONLY_PFSP)
    for version in (0, 4, 9, 11, 20, 21):
        league.fire(weights(version), NOTHING)
    assert kept(league) == ["main@0", "main@11", "main@21"]
    players = [
        (p["name"], p["version"], p["kind"], p["parent"], p["firing"])
        for p in lines(league, PLAYERS_FILE)
    ]
    assert players == [
        ("main", 0, "main", None, 0),
        ("main", 11, "historical", "main@0", 3),
        ("main", 21, "historical", "main@11", 5),
    ]
    assert set(drawn(league)) == {(0, 0), (0, 11), (0, 21)}
    sent = opponent_weights(league.state("matches"), 0, 11)
    assert (sent.arrays["w"].tolist(), dict(sent.command)) == ([11], {"epsilon": 0.5})


def test_each_player_may_have_its_own_number_of_train_iterations() -> None:
    every = {"main": 2, "rival": 30, "hunter": 7}
    league = League(players=TRIO, snapshot_every_iters=every, reset_exploiters=False)
    for version in range(0, 13, 4):
        fire(league, (version, version, version))
    assert [n for n in kept(league) if not n.endswith("@0")] == [
        *("main@4", "main@8", "hunter@8", "main@12")
    ]
    least = {"main": 6, "rival": 6, "hunter": 100}
    league = trio(snapshot_win_rate=0.7, snapshot_least_iters=least)
    fire(league, (0, 0, 0))
    won, of_rival = results(*[(0, 0, 1.0)] * 9), results(*[(0, 5, 1.0)] * 9)
    fire(league, (7, 7, 7), won, of_rival, won)
    assert kept(league)[3:] == ["main@7", "rival@7"]


def test_the_oldest_version_makes_room() -> None:
    league = League(snapshot_every_iters=1, most_players=2, **ONLY_PFSP)
    for version in range(4):
        league.fire(weights(version), NOTHING)
    assert set(drawn(league)) == {(0, 2), (0, 3)}


def test_a_version_is_kept_by_win_rate_after_the_least_iterations() -> None:
    params = {"snapshot_every_iters": None, "snapshot_win_rate": 0.8, "snapshot_least_iters": 5}
    league = League(prior_games=0.0, **params)
    won, lost = results((0, 0, 1.0)), results((0, 0, 0.0))
    for version, result in ((0, won), (4, won), (6, lost), (7, lost), (8, won)):
        league.fire(weights(version), result)
    assert kept(league) == ["main@0"]  # 3 of 5 games were won
    for version in (9, 10):
        league.fire(weights(version), results(*[(0, 0, 1.0)] * 10))
    assert kept(league) == ["main@0", "main@9"]  # against which there is no game yet


def test_opponents_are_drawn_by_win_rates_and_sides_in_turn() -> None:
    league = League(scripted=["easy", "hard"], prior_games=0.0, table=1000, **ONLY_PFSP)
    rows = [(0, 0, 1.0)] * 8 + [(FIRST_SCRIPTED, 0, 1.0)] * 8 + [(FIRST_SCRIPTED - 1, 0, 0.0)] * 8
    league.fire(weights(0), results(*rows))
    assert drawn(league) == {(FIRST_SCRIPTED - 1, 0): 1000}
    rows = [(0, 0, 0.0)] * 8 + [(FIRST_SCRIPTED, 0, 0.0)] * 8
    league.fire(weights(1), results(*rows))
    chances = (
        np.array(
            [1 - league.win_rates.win_rate("main", name) for name in ("main@0", "easy", "hard")]
        )
        ** 2
    )
    found = drawn(league)
    counts = [found[0, 0], found[FIRST_SCRIPTED, 0], found[FIRST_SCRIPTED - 1, 0]]
    np.testing.assert_allclose(counts, 1000 * chances / chances.sum(), atol=50)
    sides = [one.side for one in assignments(league.state("matches"), "main")]
    assert sides[:4] in ([0, 1, 0, 1], [1, 0, 1, 0])
    assert sum(sides) == 500


def test_the_branches_of_a_main_player_have_their_shares() -> None:
    league = League(self_play=0.5, pfsp=0.25, verification=0.25, prior_games=0.0, table=2000)
    league.fire(weights(0), results(*[(0, 0, 0.5)] * 4))
    found = drawn(league)
    np.testing.assert_allclose([found[ITSELF, 0], found[0, 0]], [1000, 1000], atol=100)
    league.fire(weights(1), results(*[(0, 0, 1.0)] * 40))  # nothing is to be verified any more
    found = drawn(league)
    np.testing.assert_allclose([found[ITSELF, 1], found[0, 0]], [1500, 500], atol=100)


def trio(**params: Any) -> League:
    return League(players=TRIO, snapshot_every_iters=None, prior_games=0.0, **params)


def fire(league: League, versions: Sequence[int], *of_players: Batch) -> None:
    inputs: list[Any] = []
    for version, result in zip(versions, of_players or [NOTHING] * 3, strict=True):
        inputs += [weights(version), result]
    league.fire(*inputs)


def test_exploiters_play_the_newest_main_player_and_the_versions_that_were_kept() -> None:
    league = trio(**ONLY_PFSP)
    fire(league, (7, 8, 9))
    assert drawn(league, "main") == {(0, 7): 64}
    assert drawn(league, "rival") == {(0, 7): 64}
    assert drawn(league, "hunter") == {(0, 7): 64}
    fire(league, (8, 9, 10), NOTHING, results(*[(0, 7, 1.0)] * 9), NOTHING)
    assert drawn(league, "rival") == {(0, 8): 64}  # the newest weights, that nobody kept
    assert opponent_weights(league.state("matches"), 0, 8).arrays["w"] == [8]
    assert [p["kind"] for p in lines(league, PLAYERS_FILE)] == [
        "main",
        "main_exploiter",
        "league_exploiter",
    ]


def test_an_exploiter_that_never_wins_plays_earlier_versions() -> None:
    league = trio(**ONLY_PFSP)
    fire(league, (7, 8, 9))
    fire(league, (8, 9, 10), NOTHING, results(*[(0, 8, 0.0)] * 9), NOTHING)
    assert drawn(league, "rival") == {(0, 7): 64}


def test_an_exploiter_of_which_a_version_was_kept_begins_again() -> None:
    league = trio(snapshot_win_rate=0.7, snapshot_least_iters=2, **ONLY_PFSP)
    fire(league, (7, 8, 9))
    won = results(*[(0, 8, 1.0)] * 9, version=8)
    fire(league, (8, 11, 10), NOTHING, won, NOTHING)
    assert "rival@11" in kept(league)
    assert [league.state(f"{name}_resets").command["resets"] for name in ("rival", "hunter")] == [
        1,
        0,
    ]
    assert {key[0] for key in drawn(league, "main")} == {0, 1}  # the main player learns to beat it
    fire(league, (9, 12, 11), NOTHING, won, NOTHING)  # results of the time before do not count
    fire(league, (9, 13, 11), NOTHING, results((0, 9, 1.0), version=12), NOTHING)
    assert league.win_rates.games("rival", "main") == 0
    again = replace(weights(14), command={"resets": 1.0})
    league.fire(weights(9), NOTHING, again, results((0, 9, 1.0), version=13), weights(12), NOTHING)
    assert league.win_rates.games("rival", "main") == 0
    again = replace(weights(16), command={"resets": 1.0})
    won = results((0, 9, 1.0), version=14)
    league.fire(weights(10), NOTHING, again, won, weights(13), NOTHING)
    found = [player for player in lines(league, PLAYERS_FILE) if player["name"] == "rival"]
    assert {p["version"]: p["parent"] for p in found} == {8: None, 11: "rival@8", 16: "rival@8"}


def test_an_exploiter_whose_learner_cannot_begin_again_is_refused() -> None:
    league = trio()
    connected = frozenset({"matches", "rival_resets"})
    with pytest.raises(UnsoundError, match="the learner of the exploiter hunter is not told when"):
        League.describe(league.config, Surroundings({}, {}, connected))


def test_rows_of_the_payoff_name_players_and_versions() -> None:
    league = League(scripted=["bot"])
    league.fire(
        weights(0), results((ITSELF, 5, 0.5), (FIRST_SCRIPTED, 0, 1.0), (0, 3, 0.0), version=5)
    )
    rows = lines(league, PAYOFF_FILE)
    assert [(r["player"], r["version"]) for r in rows] == [("main", 5)] * 3
    assert [(r["opponent"], r["opponent_version"]) for r in rows] == [
        ("main", 5),
        ("bot", 0),
        ("main", 3),
    ]
    assert rows[1] == {
        **{"player": "main", "version": 5, "opponent": "bot", "opponent_version": 0, "side": 1},
        **{"seed": 1, "score": 1.0, "returns": [1.0, 0.0], "length": 1, "firing": 0},
    }


def test_a_loaded_league_draws_the_same_matches() -> None:
    league = trio(snapshot_win_rate=0.7, snapshot_least_iters=2, **ONLY_PFSP)
    fire(league, (7, 8, 9))
    other = trio(snapshot_win_rate=0.7, snapshot_least_iters=2, seed=9, **ONLY_PFSP)
    other.load_state_dict(json_like(league.state_dict()))
    for one in (league, other):
        fire(one, (8, 11, 10), NOTHING, results(*[(0, 8, 1.0)] * 9, version=8), NOTHING)
    found, expected = other.state("matches"), league.state("matches")
    assert found.arrays.keys() == expected.arrays.keys()
    assert all(np.array_equal(found.arrays[n], a) for n, a in expected.arrays.items())
    assert other.state("rival_resets") != league.state("hunter_resets")


def json_like(state: Any) -> Any:
    """As a snapshot keeps it: mappings, lists, numbers and arrays."""
    from flowrl.core.saved_state import SavedState

    return SavedState.of(state).state_dict()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"pfsp": 0.9}, "the shares self_play 0.35, pfsp 0.9 and verification 0.15 of matches do"),
        (
            {"reset_exploiters": False},
            "`reset_exploiters` has no effect without a player of the kind",
        ),
        ({"players": {"a": "main_exploiter"}}, "no player is of the kind `main`, which exploiters"),
        (
            {"snapshot_every_iters": {"man": 3}},
            "snapshot_every_iters has numbers for man, and the pl",
        ),
        ({"snapshot_least_iters": {"main": 0}}, "{'main': 0} is neither a number of train iterat"),
        ({"scripted": ["main"]}, "two players have the name 'main'; rename one"),
        ({"players": {"a b": "main"}}, "'a b' is no name of letters, digits and _"),
    ],
)
def test_a_wrong_league_is_refused(params: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        League(**params)


def test_scripted_opponents_that_the_collector_has_not_are_refused() -> None:
    inputs = {"main_results": result_schema(2, 1)}
    league = League(scripted=[])
    with pytest.raises(UnsoundError, match="the league names 0 scripted opponents, and the coll"):
        League.describe(league.config, Surroundings(inputs, {}, frozenset()))
    League.describe(League(scripted=["bot"]).config, Surroundings(inputs, {}, frozenset()))


def league_graph(collector: Any = None, league: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "extends": "cartpole_ppo",
        "env": {"type": "pettingzoo", "id": GAME, "agents": "shared", "kwargs": {"rounds": 2}},
        "policy": {"model": {"type": "mlp", "hidden": [8]}},
        "nodes": {
            "collector": {"type": "match_collector", "n_episode": 24, **(collector or {})},
            "league": {"type": "league", "snapshot_every_iters": 2, **(league or {})},
            "evaluator": None,
        },
        "edges": ["learner -> league", "collector -> league", "league -> collector.matches"],
        **more,
    }


def test_an_unknown_player_is_refused_by_check() -> None:
    graph = flowrl.load(league_graph({"player": "mian"}))
    [problem] = [str(problem) for problem in graph.check().problems]
    assert "player depends on 'player/mian', which league.matches does not give" in problem
    assert "did you mean 'player/main'" in problem


def test_a_collector_must_say_for_which_of_several_players_it_plays() -> None:
    state = trio().state("matches")
    with pytest.raises(ValueError, match="give it `player: main or rival or hunter`"):
        assignments(state, None)
    with pytest.raises(ValueError, match="the league has no player 'foo' that learns; give it"):
        assignments(state, "foo")


def test_assignments_survive_the_way_through_a_state() -> None:
    league = League(seed=1)
    league.fire(weights(0), NOTHING)
    table = assignments(league.state("matches"), "main")
    assert all(isinstance(one, Assignment) for one in table)
    assert len(table) == 64
