"""TrueSkill's update gives each skill the moments that it has given the result, as integration over a grid finds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from flowrl.ratings.games import DRAW, LOSS, WIN, Game
from flowrl.ratings.trueskill import (
    BETA,
    Skill,
    draw_margin,
    trueskill_ratings,
    updated_skills,
)
from tests.references.slow_ratings import skills_after_game


@pytest.mark.parametrize("score", [WIN, DRAW, LOSS])
@pytest.mark.parametrize(
    ("means", "deviations"),
    [((25.0, 25.0), (25 / 3, 25 / 3)), ((30.0, 18.0), (2.0, 6.0)), ((15.0, 33.0), (3.0, 1.5))],
)
def test_an_update_equals_the_integral(
    score: float, means: tuple[float, float], deviations: tuple[float, float]
) -> None:
    margin = draw_margin(0.1)
    skills = [Skill(m, s) for m, s in zip(means, deviations, strict=True)]
    found = updated_skills(skills[0], skills[1], score, margin, drift=0.0)
    expected = skills_after_game(means, deviations, score, margin, BETA, points=601)
    for skill, (mean, deviation) in zip(found, expected, strict=True):
        assert skill.mean == pytest.approx(mean, abs=1e-4)
        assert skill.deviation == pytest.approx(deviation, abs=1e-4)


def test_the_first_win_changes_skills_as_published() -> None:
    """The known result for two new players and a draw probability of 10 %: 29.396 ± 7.171 and 20.604 ± 7.171."""
    winner, loser = updated_skills(Skill(), Skill(), WIN, draw_margin(0.1))
    assert (round(winner.mean, 3), round(winner.deviation, 3)) == (29.396, 7.171)
    assert (round(loser.mean, 3), round(loser.deviation, 3)) == (20.604, 7.171)
    drawn, _ = updated_skills(Skill(), Skill(), DRAW, draw_margin(0.1))
    assert (round(drawn.mean, 3), round(drawn.deviation, 3)) == (25.0, 6.458)


@pytest.mark.parametrize("lead", [0.0, 1.0, 60.0, 300.0, 1e4])
@pytest.mark.parametrize("score", [WIN, DRAW, LOSS])
def test_the_largest_surprise_is_a_finite_update(lead: float, score: float) -> None:
    for sign in (1, -1):
        skills = updated_skills(Skill(sign * lead, 3.0), Skill(0, 3.0), score, draw_margin(0.1))
        for skill in skills:
            assert math.isfinite(skill.mean)
            assert 0 < skill.deviation < 3.01
        toward = {WIN: 1, LOSS: -1, DRAW: -sign if lead else 0}[score]
        assert (skills[0].mean - sign * lead) * toward >= 0


def test_the_margin_is_that_of_the_probability_of_draws() -> None:
    rng = np.random.default_rng(0)
    performances = rng.normal(0, BETA, (2, 400_000))
    drawn = np.abs(performances[0] - performances[1]) < draw_margin(0.3)
    assert drawn.mean() == pytest.approx(0.3, abs=0.003)
    with pytest.raises(ValueError, match="the probability of a draw is 1; expected 0 or more"):
        draw_margin(1)


def test_skills_follow_true_strengths() -> None:
    rng = np.random.default_rng(0)
    truth = {f"p{k}": 25 + 4.0 * k for k in range(5)}
    games = []
    for _ in range(600):
        a, b = rng.choice(list(truth), 2, replace=False).tolist()
        better = truth[a] + rng.normal(0, BETA) > truth[b] + rng.normal(0, BETA)
        games.append(Game(a, b, WIN if better else LOSS))
    found = trueskill_ratings([*games, Game("p0", "p0", WIN)])
    mean = sum(skill.mean for skill in found.values()) / 5
    for name, skill in found.items():
        assert abs((skill.mean - mean) - (truth[name] - 33)) < 3 * max(skill.deviation, 1)
    assert found["p4"].conservative < found["p4"].mean


def test_games_against_oneself_say_nothing() -> None:
    assert trueskill_ratings([Game("a", "a", WIN)]) == {}
