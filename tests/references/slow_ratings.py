"""Ratings by their definitions, slow and plain: probabilities game by game, and integrals over a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flowrl.core.batch import Array

Result = tuple[int, int, float]  # the first player, the second one, the first one's score


def log_posterior(
    strengths: Sequence[float], eta: float | None, games: Sequence[Result], deviation: float
) -> float:
    """The logarithm of the probability of these strengths after the games, up to a constant."""
    total = -sum(s**2 for s in strengths) / (2 * deviation**2)
    if eta is not None:
        total -= eta**2 / (2 * 3.0**2)
    for a, b, score in games:
        difference = strengths[a] - strengths[b]
        weights = {1.0: math.exp(difference / 2), 0.0: math.exp(-difference / 2)}
        if eta is not None:
            weights[0.5] = math.exp(eta)
        total += math.log(weights[score] / sum(weights.values()))
    return total


def most_probable(
    games: Sequence[Result], players: int, deviation: float, has_draws: bool
) -> tuple[Array, Array]:
    """The strengths (and η) that maximise the posterior, and the inverse of the curvature there, by differences."""

    def value(x: Array) -> float:
        eta = float(x[players]) if has_draws else None
        return log_posterior([*x[:players].tolist()], eta, games, deviation)

    x = np.zeros(players + has_draws)
    for _ in range(30):
        gradient, hessian = numerical_derivatives(value, x)
        step = np.linalg.solve(-hessian, gradient)
        while value(x + step) < value(x) - 1e-12:
            step = step / 2
        x = x + step
        if np.abs(step).max() < 1e-9:
            break
    return x, np.linalg.inv(-numerical_derivatives(value, x)[1])


def numerical_derivatives(value: object, x: Array, h: float = 1e-3) -> tuple[Array, Array]:
    """Gradient and Hessian by central differences."""
    assert callable(value)
    n, unit = len(x), np.eye(len(x)) * h
    gradient = np.array([(value(x + unit[i]) - value(x - unit[i])) / (2 * h) for i in range(n)])
    hessian = np.empty((n, n))
    for i in range(n):
        for j in range(n):
            hessian[i, j] = (
                value(x + unit[i] + unit[j])
                - value(x + unit[i] - unit[j])
                - value(x - unit[i] + unit[j])
                + value(x - unit[i] - unit[j])
            ) / (4 * h**2)
    return gradient, hessian


def skills_after_game(
    means: tuple[float, float],
    deviations: tuple[float, float],
    score: float,
    margin: float,
    beta: float,
    points: int = 1201,
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The mean and the deviation of both skills given the result of a game, integrated over a grid of both skills."""
    spans = [
        np.linspace(m - 9 * s, m + 9 * s, points) for m, s in zip(means, deviations, strict=True)
    ]
    first, second = np.meshgrid(*spans, indexing="ij")
    prior = np.exp(
        -(((first - means[0]) / deviations[0]) ** 2) / 2
        - ((second - means[1]) / deviations[1]) ** 2 / 2
    )
    noise = math.sqrt(2) * beta  # of the difference of two performances

    def below(bound: float) -> Array:
        """The probability that the first performance minus the second is below the bound."""
        distance = (bound - (first[:, 0][:, None] - second[0])) / (noise * math.sqrt(2))
        values: Array = np.vectorize(math.erfc)(-distance) / 2
        return values

    likelihood = {
        1.0: lambda: 1 - below(margin),
        0.5: lambda: below(margin) - below(-margin),
        0.0: lambda: below(-margin),
    }[score]()
    posterior = prior * likelihood
    posterior /= posterior.sum()
    moments = []
    for axis, span in enumerate(spans):
        density = posterior.sum(axis=1 - axis)
        mean = float((density * span).sum())
        moments.append((mean, math.sqrt(float((density * (span - mean) ** 2).sum()))))
    return moments[0], moments[1]
