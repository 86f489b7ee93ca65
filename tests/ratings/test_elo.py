"""Elo ratings: equal to the slow definition, and true strengths lie in their intervals as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flowrl.core.batch import Array
from flowrl.ratings.elo import ELO, MEAN_ELO, PRIOR_ELO, elo_ratings, expected_score
from flowrl.ratings.games import DRAW, LOSS, WIN, Game, count_games
from tests.references.slow_ratings import Result, most_probable


def random_games(
    rng: np.random.Generator, strengths: Array, games: int, eta: float = -np.inf
) -> list[Result]:
    """Games of random pairs, by the probabilities of the model."""
    found = []
    for _ in range(games):
        a, b = rng.choice(len(strengths), 2, replace=False).tolist()
        half = (strengths[a] - strengths[b]) / 2
        weights = np.exp([half, eta, -half])
        score = rng.choice([WIN, DRAW, LOSS], p=weights / weights.sum())
        found.append((a, b, float(score)))
    return found


def named(games: list[Result]) -> list[Game]:
    return [Game(f"p{a}", f"p{b}", score) for a, b, score in games]


@pytest.mark.parametrize("eta", [-np.inf, 0.3])
def test_ratings_and_intervals_equal_the_slow_definition(eta: float) -> None:
    strengths = np.array([-1.0, 0.0, 0.5, 2.0])
    games = random_games(np.random.default_rng(1), strengths, 60, eta)
    has_draws = any(score == DRAW for *_, score in games)
    assert has_draws == (eta > -1)
    values, covariance = most_probable(games, 4, PRIOR_ELO / ELO, has_draws)
    centred = np.eye(4) - 1 / 4
    deviations = np.sqrt(np.diag(centred @ covariance[:4, :4] @ centred))
    found = elo_ratings(count_games(named(games)))
    assert len(found) == 4
    for k in range(4):
        rating = found[f"p{k}"]
        assert rating.elo == pytest.approx(
            MEAN_ELO + ELO * (values[k] - values[:4].mean()), abs=0.01
        )
        assert rating.high - rating.elo == pytest.approx(1.95996 * ELO * deviations[k], rel=1e-4)
        assert rating.elo - rating.low == pytest.approx(rating.high - rating.elo)
        assert rating.games == sum(k in (a, b) for a, b, _ in games)


@pytest.mark.slow
@pytest.mark.parametrize("eta", [-np.inf, 0.0])
def test_true_strengths_lie_in_95_of_100_intervals(eta: float) -> None:
    inside, total = 0, 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        strengths = rng.normal(0, 1, 6)  # 174 Elo
        truth = MEAN_ELO + ELO * (strengths - strengths.mean())
        found = elo_ratings(count_games(named(random_games(rng, strengths, 200, eta))))
        for k in range(6):
            rating = found[f"p{k}"]
            inside += rating.low <= truth[k] <= rating.high
            total += 1
    # 480 intervals of correlated players; three deviations of a binomial share are 3 points
    assert 0.92 <= inside / total <= 0.98


def test_many_games_recover_known_strengths() -> None:
    truth = np.array([-400.0, -100.0, 0.0, 500.0])
    games = random_games(np.random.default_rng(0), truth / ELO, 5000)
    found = elo_ratings(count_games(named(games)))
    for k, elo in enumerate(truth):
        assert found[f"p{k}"].elo == pytest.approx(elo + MEAN_ELO, abs=40)


def test_an_unbeaten_player_has_a_finite_rating() -> None:
    games = [Game("best", "other", WIN)] * 50
    found = elo_ratings(count_games(games))
    assert 400 < found["best"].elo - found["other"].elo < 1500
    assert found["best"].elo + found["other"].elo == pytest.approx(2 * MEAN_ELO)


def test_more_wins_raise_a_rating_and_more_games_shorten_its_interval() -> None:
    few, many = (elo_ratings(count_games([Game("a", "b", WIN)] * n)) for n in (3, 30))
    assert many["a"].elo > few["a"].elo
    even = [
        elo_ratings(count_games([Game("a", "b", WIN), Game("a", "b", LOSS)] * n)) for n in (5, 50)
    ]
    assert even[0]["a"].elo == pytest.approx(MEAN_ELO)
    assert even[1]["a"].high < even[0]["a"].high


def test_draws_bring_players_together() -> None:
    wins = [Game("a", "b", WIN)] * 6
    without, with_draws = (
        elo_ratings(count_games(games)) for games in (wins, [*wins, *[Game("a", "b", DRAW)] * 6])
    )
    assert MEAN_ELO < with_draws["a"].elo < without["a"].elo


def test_games_that_were_all_drawn_make_equal_players() -> None:
    found = elo_ratings(count_games([Game("a", "b", DRAW)] * 20))
    assert found["a"].elo == pytest.approx(MEAN_ELO)
    assert math.isfinite(found["a"].high)


def test_the_order_of_games_and_which_player_is_named_first_have_no_influence() -> None:
    games = random_games(np.random.default_rng(2), np.array([0.0, 1.0, 2.0]), 40, 0.0)
    swapped = [(b, a, 1 - score) for a, b, score in reversed(games)]
    first, second = (
        elo_ratings(count_games(named(g), ["p0", "p1", "p2"])) for g in (games, swapped)
    )
    assert first == second


def test_who_has_not_played_has_no_rating() -> None:
    counts = count_games([Game("a", "b", WIN), Game("c", "c", WIN)], ["z"])
    assert counts.players == ("z", "a", "b", "c")
    assert list(elo_ratings(counts)) == ["a", "b"]
    assert elo_ratings(count_games([])) == {}


def test_counts_say_who_met_and_how_often_a_player_won() -> None:
    games = [Game("a", "b", WIN), Game("b", "a", WIN), Game("a", "b", DRAW), Game("c", "d", LOSS)]
    counts = count_games(games, ["e"])
    assert counts.groups() == [["e"], ["a", "b"], ["c", "d"]]
    assert counts.win_rate("a", "b") == 0.5
    assert counts.win_rate("d", "c") == 1.0
    assert counts.win_rate("a", "c") is None


def test_another_score_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a against b: the score is 2; expected 1, 0\.5 or 0"):
        Game("a", "b", 2)


def test_400_elo_are_odds_of_ten_to_one() -> None:
    assert expected_score(400) == pytest.approx(10 / 11)
    assert expected_score(0) == 0.5
