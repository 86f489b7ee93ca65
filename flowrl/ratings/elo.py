"""Elo ratings with intervals: the model of Bradley and Terry (1952), with draws as in Davidson (1970).

With the difference d of two strengths, a win, a draw and a loss are as probable as exp(d/2) : exp(η) : exp(−d/2). The
strengths are those that are most probable after all games. Before any game they are normal, so that also a player that
was never beaten has a finite one. The order of the games has no influence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from flowrl.core.batch import Array
from flowrl.core.statistics import CONFIDENCE
from flowrl.ratings.games import GameCounts

MEAN_ELO = 1500.0  # of all rated players
ELO = 400 / math.log(10)  # of a strength of 1, so that 400 Elo are odds of 10 to 1
PRIOR_ELO = 600.0  # the standard deviation of strengths before any game
PRIOR_DRAWS = 3.0  # that of η, which draws determine soon
CLOSE = 1e-10  # the gradient at which Newton's method ends
MOST_STEPS = 200


@dataclass(frozen=True, slots=True)
class EloRating:
    """The rating of a player, and the interval in which it is with a probability of 95 %."""

    player: str
    elo: float
    low: float
    high: float
    games: int


def elo_ratings(counts: GameCounts) -> dict[str, EloRating]:
    """Return the ratings of all players that have played, whose mean is 1500.

    An interval is about the difference to that mean. It follows from the curvature of the posterior probability, so it
    is too short where a player has won, or lost, nearly all of few games.
    """
    games = counts.games.sum(axis=1)
    rated = np.flatnonzero(games)
    if not len(rated):
        return {}
    wins, draws = (matrix[np.ix_(rated, rated)] for matrix in (counts.wins, counts.draws))
    strengths, covariance = _fit(wins, draws)
    deviations = ELO * np.sqrt(np.diag(covariance))
    elos = MEAN_ELO + ELO * (strengths - strengths.mean())
    margin = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * deviations
    return {
        counts.players[k]: EloRating(
            counts.players[k],
            float(elos[i]),
            float(elos[i] - margin[i]),
            float(elos[i] + margin[i]),
            int(games[k]),
        )
        for i, k in enumerate(rated.tolist())
    }


def expected_score(difference_elo: float) -> float:
    """Return the expected score of a player whose rating is higher by this, if there are no draws."""
    return 1 / (1 + 10 ** (-difference_elo / 400))


def _fit(wins: Array, draws: Array) -> tuple[Array, Array]:
    """Return the most probable strengths (N,), and the covariance of their differences to the mean (N, N)."""
    n = len(wins)
    has_draws = bool(draws.any())
    values = np.zeros(n + has_draws)  # the strengths, and η if there were draws
    value = _log_posterior(values, wins, draws)
    for _ in range(MOST_STEPS):
        gradient, curvature = _derivatives(values, wins, draws)
        if np.abs(gradient).max() < CLOSE:
            break
        step, size = np.linalg.solve(curvature, gradient), 1.0
        # The posterior is concave. Newton's step is halved until it is no step back.
        while (following := _log_posterior(values + size * step, wins, draws)) < value - CLOSE:
            size /= 2
        values, value = values + size * step, following
    covariance = np.linalg.inv(_derivatives(values, wins, draws)[1])[:n, :n]
    centred = np.eye(n) - 1 / n
    return values[:n], centred @ covariance @ centred


def _prior_precision(n: int, has_draws: bool) -> Array:
    strengths = np.full(n, (ELO / PRIOR_ELO) ** 2)
    return np.append(strengths, PRIOR_DRAWS**-2) if has_draws else strengths


def _log_terms(values: Array, n: int) -> tuple[Array, Array, Array]:
    """The logarithms of the terms of a win, a draw and a loss of each pair (N, N)."""
    half = (values[:n, None] - values[None, :n]) / 2
    draw = np.full((n, n), values[n] if len(values) > n else -np.inf)
    return half, draw, -half


def _log_posterior(values: Array, wins: Array, draws: Array) -> float:
    n = len(wins)
    win, draw, loss = _log_terms(values, n)
    log_sum = np.logaddexp(np.logaddexp(win, loss), draw)
    log_likelihood = (wins * (win - log_sum)).sum()
    if len(values) > n:
        log_likelihood += (draws * (draw - log_sum)).sum() / 2  # each draw is counted for both
    prior = (_prior_precision(n, len(values) > n) * values**2).sum() / 2
    return float(log_likelihood - prior)


def _derivatives(values: Array, wins: Array, draws: Array) -> tuple[Array, Array]:
    """The gradient of the log posterior, and the negative of its matrix of second derivatives.

    The model is an exponential family: the second derivatives are a covariance, and do not depend on the results.
    """
    n, has_draws = len(wins), len(values) > len(wins)
    games = wins + wins.T + draws
    terms = np.exp(np.stack(_log_terms(values, n)))
    win, draw, loss = terms / terms.sum(axis=0)
    lead = (win - loss) / 2  # expected; a win counts 1/2, a loss −1/2
    precision = _prior_precision(n, has_draws)
    gradient = -precision * values
    gradient[:n] += ((wins - wins.T) / 2 - games * lead).sum(axis=1)
    curvature = np.diag(precision)
    variance = games * ((win + loss) / 4 - lead**2)
    curvature[:n, :n] += np.diag(variance.sum(axis=1)) - variance
    if has_draws:
        gradient[n] += (draws - games * draw).sum() / 2
        curvature[n, n] += (games * draw * (1 - draw)).sum() / 2
        with_draws = -(games * lead * draw).sum(axis=1)
        curvature[:n, n] += with_draws
        curvature[n, :n] += with_draws
    return gradient, curvature
