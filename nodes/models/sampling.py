"""Samples actions from heads: pure functions of arrays and a random generator."""

from __future__ import annotations

import numpy as np

from flowrl.core.batch import Array

LOG_2PI = float(np.log(2 * np.pi))
LOG_STD_LIMITS = (-5.0, 2.0)  # of squashed Gaussians, so that their likelihoods stay finite


def argmax(scores: Array) -> Array:
    """The best action of each row: (B, A) to (B,)."""
    return scores.argmax(-1)


def epsilon_greedy(scores: Array, epsilon: float, rng: np.random.Generator) -> Array:
    """A random action with probability epsilon, otherwise the best one: (B, A) to (B,)."""
    rows, actions = scores.shape
    explores = rng.random(rows) < epsilon
    random = rng.integers(actions, size=rows)
    return np.where(explores, random, scores.argmax(-1))


def masked_epsilon_greedy(
    scores: Array, allowed: Array, epsilon: float, rng: np.random.Generator
) -> Array:
    """As `epsilon_greedy`, but random actions are drawn from the allowed ones (B, A)."""
    explores = rng.random(len(scores)) < epsilon
    return np.where(explores, uniform_allowed(allowed, rng), scores.argmax(-1))


def uniform_allowed(allowed: Array, rng: np.random.Generator) -> Array:
    """An allowed action of each row, drawn uniformly: (B, A) to (B,)."""
    return np.where(allowed, rng.random(allowed.shape), -1.0).argmax(-1)


def sample_categorical(logits: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Actions drawn from softmax(logits), and their log-probabilities: (B, A) to (B,), (B,)."""
    shifted = logits - logits.max(-1, keepdims=True)
    cumulated = np.exp(shifted).cumsum(-1)
    total = cumulated[:, -1:]
    # inverse transform sampling; the last action needs no upper bound
    action = (cumulated[:, :-1] <= rng.random(total.shape, np.float32) * total).sum(-1)
    logp = shifted[np.arange(len(action)), action] - np.log(total[:, 0])
    return action, logp


def sample_gaussian(mean: Array, log_std: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Actions of independent normals, and their log-densities: (B, A), (B, A) to (B, A), (B,)."""
    noise = rng.standard_normal(mean.shape, np.float32)
    logp = (-0.5 * (noise * noise + LOG_2PI) - log_std).sum(-1)
    return mean + np.exp(log_std) * noise, logp
