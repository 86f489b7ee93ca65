"""TrueSkill for games of two players (Herbrich, Minka, Graepel 2006): one Gaussian update for each game, in order.

A player's performance in a game is its skill with noise of the deviation β. The first player wins if its performance is
better by more than ε; if none is, the game is drawn. An update gives each skill the mean and the variance that it has
given the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

from flowrl.ratings.games import DRAW, WIN, Game

MEAN, DEVIATION = 25.0, 25 / 3  # of a skill before any game
BETA = 25 / 6
DRIFT = 25 / 300  # the deviation by which a skill changes between two games (τ)
SMALL = -30.0  # below it, the normal distribution function is replaced by its asymptotic series
STANDARD = NormalDist()


@dataclass(frozen=True, slots=True)
class Skill:
    """What is known of a player's skill."""

    mean: float = MEAN
    deviation: float = DEVIATION

    @property
    def conservative(self) -> float:
        """A skill that the player has almost certainly: three deviations below the mean."""
        return self.mean - 3 * self.deviation


def trueskill_ratings(games: Iterable[Game], drift: float = DRIFT) -> dict[str, Skill]:
    """Return the skills of all players after these games, in this order. Games against oneself say nothing.

    How probable draws are between equal players follows from their share of all games.
    """
    played = [game for game in games if game.player != game.opponent]
    drawn = sum(game.score == DRAW for game in played)
    margin = draw_margin((drawn + 1) / (len(played) + 2))
    skills: dict[str, Skill] = {}
    for game in played:
        a, b = (skills.get(name, Skill()) for name in (game.player, game.opponent))
        skills[game.player], skills[game.opponent] = updated_skills(a, b, game.score, margin, drift)
    return skills


def draw_margin(probability: float) -> float:
    """Return the difference ε of performances below which a game of equal players is drawn with this probability."""
    if not 0 <= probability < 1:
        raise ValueError(
            f"the probability of a draw is {probability}; expected 0 or more, and less than 1"
        )
    return STANDARD.inv_cdf((probability + 1) / 2) * math.sqrt(2) * BETA


def updated_skills(
    player: Skill, opponent: Skill, score: float, margin: float, drift: float = DRIFT
) -> tuple[Skill, Skill]:
    """Return both skills after a game of which `score` is the first player's."""
    variances = player.deviation**2 + drift**2, opponent.deviation**2 + drift**2
    c = math.sqrt(sum(variances) + 2 * BETA**2)
    lead, e = (player.mean - opponent.mean) / c, margin / c
    if score == DRAW:
        shift, shrink = _drawn(lead, e)
    elif score == WIN:
        shift, shrink = _won(lead - e)
    else:
        shift, shrink = _won(-lead - e)
        shift = -shift
    return (
        _moved(player.mean, variances[0], shift, shrink, c),
        _moved(opponent.mean, variances[1], -shift, shrink, c),
    )


def _moved(mean: float, variance: float, shift: float, shrink: float, c: float) -> Skill:
    remaining = variance * (1 - variance / c**2 * shrink)
    return Skill(mean + variance / c * shift, math.sqrt(remaining))


def _won(x: float) -> tuple[float, float]:
    """How a normal variable with the mean x and the variance 1 changes if it is positive: mean, and lost variance."""
    shift = _inverse_mills(x)
    return shift, shift * (shift + x)


def _drawn(lead: float, e: float) -> tuple[float, float]:
    """The same of one with the mean `lead`, if its absolute value is at most e."""
    if e == 0:  # the limit: the variable is 0
        return -lead, 1.0
    sign, x = math.copysign(1.0, lead), abs(lead)
    # relative to the density at the bound that is nearer, which may be tiny
    ratio = math.exp(-2 * e * x)  # of the densities at the two bounds
    mass = 1 / _inverse_mills(e - x) - ratio / _inverse_mills(-e - x)
    if mass <= 0:
        return sign * (e - x), 1.0
    shift = (ratio - 1) / mass
    return sign * shift, shift**2 + ((e - x) + (e + x) * ratio) / mass


def _inverse_mills(x: float) -> float:
    """The density of the standard normal distribution, divided by its distribution function."""
    if x < SMALL:
        return -x + 1 / -x - 2 / (-x) ** 3
    return STANDARD.pdf(x) / (math.erfc(-x / math.sqrt(2)) / 2)
