"""Sampling of actions from heads."""

import numpy as np
import pytest

from flowrl.nodes.models.sampling import argmax, epsilon_greedy, sample_categorical, sample_gaussian


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_argmax_takes_the_best_action_of_each_row() -> None:
    scores = np.array([[0, 1, 2], [5, 4, 3], [1, 7, 1]], np.float32)
    np.testing.assert_array_equal(argmax(scores), [2, 0, 1])


def test_epsilon_0_is_greedy_and_epsilon_1_is_uniform() -> None:
    scores = np.tile(np.array([0, 9, 0, 0], np.float32), (4000, 1))
    assert set(epsilon_greedy(scores, 0.0, rng())) == {1}
    counts = np.bincount(epsilon_greedy(scores, 1.0, rng()), minlength=4)
    assert np.abs(counts - 1000).max() < 120  # four standard deviations


def test_rows_explore_independently() -> None:
    scores = np.tile(np.array([1, 0], np.float32), (10_000, 1))
    explored = epsilon_greedy(scores, 0.3, rng())  # half of the random actions are the best one
    assert explored.mean() == pytest.approx(0.15, abs=0.015)


def test_categorical_draws_have_the_softmax_probabilities() -> None:
    p = np.array([0.1, 0.6, 0.3])
    logits = np.tile(np.log(p) + 5, (20_000, 1)).astype(np.float32)
    action, logp = sample_categorical(logits, rng())
    np.testing.assert_allclose(np.bincount(action) / 20_000, p, atol=0.015)
    np.testing.assert_allclose(logp, np.log(p)[action], rtol=1e-5)


def test_categorical_draws_never_have_probability_0() -> None:
    logits = np.tile(np.array([-np.inf, 0, -np.inf, 0, -np.inf], np.float32), (5000, 1))
    action, logp = sample_categorical(logits, rng())
    assert set(action) == {1, 3}
    np.testing.assert_allclose(logp, np.log(0.5), rtol=1e-6)


def test_categorical_draws_work_with_logits_of_any_size() -> None:
    action, logp = sample_categorical(np.array([[3e4, -3e4], [-3e4, 3e4]], np.float32), rng())
    np.testing.assert_array_equal(action, [0, 1])
    np.testing.assert_array_equal(logp, [0, 0])


def test_gaussian_draws_have_the_mean_and_deviation_of_the_head() -> None:
    mean = np.tile(np.array([1, -2], np.float32), (20_000, 1))
    log_std = np.tile(np.log(np.array([0.5, 2], np.float32)), (20_000, 1))
    action, _ = sample_gaussian(mean, log_std, rng())
    np.testing.assert_allclose(action.mean(0), [1, -2], atol=0.06)
    np.testing.assert_allclose(action.std(0), [0.5, 2], rtol=0.03)
    assert action.dtype == np.float32


def test_the_gaussian_log_density_equals_the_formula() -> None:
    mean, std = np.array([[0.3, -1.0]], np.float32), np.array([[0.7, 1.5]], np.float32)
    action, logp = sample_gaussian(mean, np.log(std), rng(3))
    density = np.exp(-0.5 * ((action - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(logp, np.log(density.prod(1)), rtol=1e-5)


@pytest.mark.parametrize("draw", [sample_categorical, lambda x, r: sample_gaussian(x, x, r)])
def test_the_same_generator_draws_the_same_actions(draw) -> None:
    heads = rng(9).standard_normal((50, 4)).astype(np.float32)
    for one, other in zip(draw(heads, rng(1)), draw(heads, rng(1)), strict=True):
        np.testing.assert_array_equal(one, other)
