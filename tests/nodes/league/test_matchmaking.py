"""Opponents are chosen by win rates, and win rates forget old games and doubt few ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flowrl.nodes.league.matchmaking import WinRates, opponent_probabilities


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("squared", [1.0, 0.25, 0.04, 0.0]),
        ("linear", [1.0, 0.5, 0.2, 0.0]),
        ("variance", [0.0, 0.25, 0.16, 0.0]),
    ],
)
def test_opponents_are_as_probable_as_their_weights(weighting: str, expected: list[float]) -> None:
    found = opponent_probabilities([0.0, 0.5, 0.8, 1.0], weighting)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, np.array(expected) / sum(expected), rtol=1e-12)


@pytest.mark.parametrize("weighting", ["squared", "linear", "variance"])
def test_opponents_that_always_lose_are_equally_probable(weighting: str) -> None:
    found = opponent_probabilities([1.0, 1.0, 1.0], weighting)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, [1 / 3] * 3)


def test_impossible_win_rates_are_refused() -> None:
    with pytest.raises(ValueError, match="win rates are from 0 to 1, and these are"):
        opponent_probabilities([0.5, 1.1])
    with pytest.raises(ValueError, match=r"have the shape \(0,\)"):
        opponent_probabilities([])
    with pytest.raises(ValueError, match="no weighting 'cubed'; known: squared, variance, linear"):
        opponent_probabilities([0.5], "cubed")  # type: ignore[arg-type]


def slow_win_rate(scores: list[float], decay: float, prior_games: float) -> float:
    """The definition: a weighted mean of all scores and of the games before the first one."""
    values, weights = [0.5], [prior_games]
    for k, score in enumerate(scores):
        values.append(score)
        weights.append(decay ** (len(scores) - 1 - k))
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


@pytest.mark.parametrize("decay", [1.0, 0.99, 0.5])
@pytest.mark.parametrize("prior_games", [0.0, 4.0])
def test_win_rates_equal_their_definition(decay: float, prior_games: float) -> None:
    rng = np.random.default_rng(0)
    rates = WinRates(decay, prior_games)
    scores: list[float] = []
    for score in rng.choice([0.0, 0.5, 1.0], 40, p=[0.2, 0.2, 0.6]):
        scores.append(float(score))
        rates.add("a", "b", float(score))
        rates.add("b", "c", 1.0)
        expected = slow_win_rate(scores, decay, prior_games)
        assert rates.win_rate("a", "b") == pytest.approx(expected, rel=1e-12)
        assert rates.win_rate("b", "a") == pytest.approx(1 - expected, rel=1e-12)
    games = sum(decay**k for k in range(40))
    assert rates.games("a", "b") == rates.games("b", "a") == pytest.approx(games, rel=1e-12)
    np.testing.assert_array_equal(rates.win_rates("a", ["b", "c"]), [rates.win_rate("a", "b"), 0.5])


def test_few_games_say_little() -> None:
    rates = WinRates(prior_games=8)
    rates.add("a", "b", 1.0)
    assert rates.win_rate("a", "b") == 5 / 9
    assert rates.win_rate("a", "nobody") == 0.5


def test_games_against_oneself_are_not_counted() -> None:
    rates = WinRates()
    rates.add("a", "a", 1.0)
    assert (rates.games("a", "a"), rates.win_rate("a", "a")) == (0, 0.5)


def test_a_player_that_begins_again_has_no_games() -> None:
    rates = WinRates()
    rates.add("a", "b", 1.0)
    rates.add("c", "b", 1.0)
    rates.forget("a")
    assert rates.games("a", "b") == rates.games("b", "a") == 0
    assert rates.win_rate("c", "b") == 1


def test_a_saved_state_continues_with_the_same_bits() -> None:
    first, second = WinRates(0.9, 2), WinRates(0.9, 2)
    first.add("a", "b", 1.0)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for rates in (first, second):
        rates.add("b", "a", 0.5)
    assert first.state_dict() == second.state_dict()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="decay is 0; expected more than 0, and at most 1"):
        WinRates(0)
    with pytest.raises(ValueError, match="prior_games is -1; expected 0 or more"):
        WinRates(1, -1)
    with pytest.raises(ValueError, match=r"the score is 2; expected 1, 0\.5 or 0"):
        WinRates().add("a", "b", 2)
