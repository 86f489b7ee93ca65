"""Losses against hand-worked numbers and slow, plain definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution
from torch.nn import functional

from flowrl.nodes import losses
from flowrl.nodes.models.sampling import LOG_STD_LIMITS

RNG = np.random.default_rng(0)


def random(*shape: int) -> Tensor:
    return torch.from_numpy(RNG.standard_normal(shape, np.float32))


def test_the_values_of_taken_actions_are_chosen() -> None:
    values = torch.arange(12.0).view(2, 2, 3)
    assert losses.chosen(values, torch.tensor([[0, 2], [1, 1]])).tolist() == [[0, 5], [7, 10]]
    assert losses.chosen_each(values, torch.tensor([1, 0])).tolist() == [[3, 4, 5], [6, 7, 8]]


def test_the_double_target_takes_the_choosers_best_action() -> None:
    q, chooser = torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, 2.0]])
    target = losses.double_q_target(torch.tensor([1.0]), torch.tensor([0.5]), q, chooser)
    assert target.tolist() == [1.5]


def test_errors_equal_their_formulas() -> None:
    x, y = torch.tensor([0.0, 0.0]), torch.tensor([0.5, 3.0])
    assert losses.error_loss("mse", x, y).tolist() == [0.25, 9.0]
    assert losses.error_loss("huber", x, y).tolist() == [0.125, 2.5]


def test_distillation_is_the_divergence_of_the_policy_from_the_expert() -> None:
    """Rusu et al. 2016, equation 3, term by term."""
    logits, scores, temperature = random(5, 4), random(5, 4), 0.3
    for row, found in enumerate(losses.distillation_loss(logits, scores, temperature).tolist()):
        teacher = [math.exp(x / temperature) for x in scores[row].tolist()]
        student = [math.exp(x) for x in logits[row].tolist()]
        p = [x / sum(teacher) for x in teacher]
        q = [x / sum(student) for x in student]
        expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        assert found == pytest.approx(expected, abs=1e-5)


def slow_projection(atoms: list[float], p: list[float], r: float, discount: float) -> list[float]:
    """Bellemare et al. 2017, algorithm 1, line by line."""
    m, low, high = [0.0] * len(atoms), atoms[0], atoms[-1]
    step = (high - low) / (len(atoms) - 1)
    for z, probability in zip(atoms, p, strict=True):
        b = (min(max(r + discount * z, low), high) - low) / step
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            m[lower] += probability
        else:
            m[lower] += probability * (upper - b)
            m[upper] += probability * (b - lower)
    return m


@pytest.mark.parametrize(
    ("r", "discount"), [(0.0, 1.0), (0.3, 0.9), (-7.0, 0.5), (9.0, 1.0), (0.7, 0.0)]
)
def test_the_projection_equals_algorithm_1(r: float, discount: float) -> None:
    atoms = torch.linspace(-2, 3, 6)
    p = random(4, 6).softmax(1)
    found = losses.categorical_projection(atoms, p, torch.full((4,), r), torch.full((4,), discount))
    for row, probabilities in zip(found, p, strict=True):
        expected = slow_projection(atoms.tolist(), probabilities.tolist(), r, discount)
        np.testing.assert_allclose(row, expected, atol=1e-6)
    torch.testing.assert_close(found.sum(1), torch.ones(4))


def test_no_projected_probability_is_negative() -> None:
    """Rounding places a return at v_max a little beyond the last atom for these bounds: 3 * (50 / 3) > 50."""
    atoms = torch.linspace(-1, 2, 51)
    assert (atoms[-1] - atoms[0]) * (50 / (atoms[-1] - atoms[0])) > 50
    found = losses.categorical_projection(
        atoms, torch.full((1, 51), 1 / 51), torch.tensor([9.0]), torch.tensor([1.0])
    )
    assert (found >= 0).all()
    assert found[0, -1] == pytest.approx(1.0)


def slow_quantile_huber(z: Tensor, target: Tensor, fractions: Tensor, kappa: float) -> float:
    total = 0.0
    for z_i, tau in zip(z.tolist(), fractions.tolist(), strict=True):
        for t_j in target.tolist():
            u = t_j - z_i
            huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            total += abs(tau - (u < 0)) * huber / kappa / len(target)
    return total


@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_the_quantile_loss_equals_its_definition(kappa: float) -> None:
    z, target, fractions = random(3, 4) * 2, random(3, 5) * 2, torch.rand(3, 4)
    found = losses.quantile_huber(z, target, fractions, kappa)
    expected = [slow_quantile_huber(*row, kappa) for row in zip(z, target, fractions, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("kappa", [1.0, 0.3])
@pytest.mark.parametrize("each_row", [False, True])
def test_the_gradient_of_the_quantile_loss_is_that_of_its_definition(
    kappa: float, each_row: bool
) -> None:
    draw = torch.Generator().manual_seed(0)
    z, target = (2 * torch.randn(3, 2, n, generator=draw) for n in (4, 5))
    fractions = torch.rand(3, 2, 4, generator=draw) if each_row else torch.rand(4, generator=draw)
    weights = torch.tensor([[1.0, 0.5], [2.0, 0.0], [0.1, 3.0]])
    found = z.clone().requires_grad_()
    (losses.quantile_huber(found, target, fractions, kappa) * weights).sum().backward()

    expected = z.clone().requires_grad_()
    u = target.unsqueeze(-2) - expected.unsqueeze(-1)
    huber = functional.huber_loss(u, torch.zeros_like(u), reduction="none", delta=kappa)
    pairs = (fractions.unsqueeze(-1) - (u < 0).float()).abs() * huber / kappa
    (pairs.mean(-1).sum(-1) * weights).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)


def test_a_known_gradient_leaves_the_value_as_it_is() -> None:
    x = torch.tensor([[3.0, -1.0]], requires_grad=True)
    value = losses.with_gradient(torch.tensor([7.0]), x, torch.tensor([[0.5, 2.0]]))
    (3 * value).sum().backward()
    assert value.tolist() == [7.0]
    assert x.grad is not None
    assert x.grad.tolist() == [[1.5, 6.0]]


def test_the_quantile_loss_is_smallest_at_the_quantiles() -> None:
    """Of the numbers 1 to 100, the quantile at 0.25 is about 25; with the wrong sign it would be about 75."""
    z = torch.tensor([[50.0, 50.0]], requires_grad=True)
    fractions, target = torch.tensor([0.25, 0.75]), torch.arange(1.0, 101).unsqueeze(0)
    for _ in range(3000):
        [grad] = torch.autograd.grad(losses.quantile_huber(z, target, fractions).sum(), z)
        z = (z - 2.0 * grad).detach().requires_grad_()
    np.testing.assert_allclose(z.detach()[0], [25.5, 75.5], atol=1.0)


def test_the_soft_value_lies_between_the_best_value_and_that_with_all_entropy() -> None:
    q = torch.tensor([[1.0, 3.0, 2.0]])
    assert losses.soft_value(q, 0.01).item() == pytest.approx(3.0, abs=1e-3)
    expected = 2.0 * math.log(sum(math.exp(x / 2.0) for x in (1, 3, 2)))
    assert losses.soft_value(q, 2.0).item() == pytest.approx(expected, rel=1e-6)


def test_the_squashed_gaussian_equals_torchs_transformed_distribution() -> None:
    mean, log_std, noise = random(6, 2), random(6, 2).clamp(-2, 1), random(6, 2)
    action, logp = losses.squashed_gaussian(mean, log_std, noise)
    expected = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    torch.testing.assert_close(action, (mean + log_std.exp() * noise).tanh())
    torch.testing.assert_close(logp, expected.log_prob(action).sum(1), rtol=1e-4, atol=1e-4)


def test_the_likelihood_of_an_action_at_its_bound_is_finite() -> None:
    _, logp = losses.squashed_gaussian(
        torch.full((1, 1), 30.0), torch.zeros(1, 1), torch.zeros(1, 1)
    )
    assert torch.isfinite(logp).all()


def test_the_deviation_of_a_squashed_gaussian_is_limited() -> None:
    mean, noise = torch.zeros(1, 2), torch.ones(1, 2)
    limits = torch.tensor([LOG_STD_LIMITS])
    found = losses.squashed_gaussian(mean, 10 * limits, noise)
    torch.testing.assert_close(found, losses.squashed_gaussian(mean, limits, noise))


def test_smoothed_actions_stay_within_their_bounds() -> None:
    action, noise = torch.tensor([0.9, 0.0, -0.9, 0.2]), torch.tensor([2.0, 0.3, -0.05, -3.0])
    expected = [1.0, 0.3, -0.95, -0.3]  # the last noise is clipped, and the first action
    np.testing.assert_allclose(losses.smoothed_action(action, noise, 0.5), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "dual", "expected"),
    [
        (1.5, 1.0, None, -1.2),  # no gain beyond the clip
        (0.5, 1.0, None, -0.5),  # a loss is not clipped
        (0.5, -1.0, None, 0.8),
        (5.0, -1.0, None, 5.0),
        (5.0, -1.0, 3.0, 3.0),  # but for the dual clip
        (2.0, -1.0, 3.0, 2.0),
        (5.0, 1.0, 3.0, -1.2),
    ],
)
def test_the_clipped_loss_equals_hand_worked_numbers(
    ratio: float, advantage: float, dual: float | None, expected: float
) -> None:
    found = losses.clipped_policy_loss(torch.tensor([ratio]), torch.tensor([advantage]), 0.2, dual)
    assert found.item() == pytest.approx(expected)


def test_a_clipped_value_gets_no_credit_for_moving_far() -> None:
    value, target, old = torch.tensor([3.0]), torch.tensor([3.0]), torch.tensor([0.0])
    assert losses.clipped_value_loss(value, target, old, None).item() == 0.0
    assert losses.clipped_value_loss(value, target, old, 1.0).item() == 4.0  # (1 - 3)^2
    assert losses.clipped_value_loss(value, old, old, 1.0).item() == 9.0  # (3 - 0)^2, and not 1


@pytest.mark.parametrize("x", [0.0, 1e-6, 1e-3, -0.5, 3.0, -1e4])
def test_rescaled_values_are_restored(x: float) -> None:
    value = torch.tensor([x])
    expected = math.copysign(math.sqrt(abs(x) + 1) - 1, x) + 1e-3 * x
    assert losses.rescale_value(value).item() == pytest.approx(expected, rel=1e-3, abs=1e-9)
    restored = losses.restore_value(losses.rescale_value(value)).item()
    assert restored == pytest.approx(x, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("form", ["positive", "negative", "signed"])
def test_the_imitation_reward_equals_its_definition(form: str) -> None:
    logit = random(20) * 3
    for x, found in zip(logit.tolist(), losses.imitation_reward(form, logit).tolist(), strict=True):
        d = 1 / (1 + math.exp(-x))
        positive, negative = -math.log(1 - d), math.log(d)
        expected = {"positive": positive, "negative": negative, "signed": positive + negative}
        assert found == pytest.approx(expected[form], abs=1e-5)
    huge = losses.imitation_reward(form, torch.tensor([-200.0, 200.0]))
    assert huge.isfinite().all()


def test_the_discriminators_loss_equals_its_definition() -> None:
    agent, expert = random(7), random(5)
    d_agent, d_expert = agent.sigmoid().tolist(), expert.sigmoid().tolist()
    expected = -sum(math.log(d) for d in d_expert) / 5 - sum(math.log(1 - d) for d in d_agent) / 7
    assert losses.discriminator_loss(agent, expert).item() == pytest.approx(expected, rel=1e-5)


def test_the_ranking_loss_equals_its_definition() -> None:
    one, other, better = random(6), random(6), torch.tensor([1.0, 0, 1, 0, 1, 0])
    expected = 0.0
    for x, y, first in zip(one.tolist(), other.tolist(), better.tolist(), strict=True):
        winner, loser = (x, y) if first else (y, x)
        expected -= math.log(math.exp(winner) / (math.exp(winner) + math.exp(loser))) / 6
    assert losses.ranking_loss(one, other, better).item() == pytest.approx(expected, rel=1e-5)


def test_the_expectile_loss_equals_its_definition() -> None:
    error = random(20)
    expected = [(0.9 if u >= 0 else 0.1) * u * u for u in error.tolist()]
    np.testing.assert_allclose(losses.expectile_loss(error, 0.9), expected, rtol=1e-5)


def test_the_minimum_of_the_expectile_loss_rises_with_the_expectile() -> None:
    """The expectile 0.5 is the mean; near 1 it is the maximum."""
    values, grid = torch.tensor([0.0, 1.0, 5.0]), torch.linspace(0, 5, 5001)

    def minimum(expectile: float) -> float:
        error = values.unsqueeze(1) - grid
        return float(grid[losses.expectile_loss(error, expectile).sum(0).argmin()])

    assert minimum(0.5) == pytest.approx(2, abs=1e-3)
    assert minimum(0.999) > 4.9


def test_the_margin_loss_equals_its_definition() -> None:
    q, action = random(12, 4), torch.arange(12) % 4
    found = losses.margin_loss(q, action, 0.8)
    for row in range(12):
        a_e = int(action[row])
        raised = [float(q[row, a]) + (0.8 if a != a_e else 0.0) for a in range(4)]
        assert float(found[row]) == pytest.approx(max(raised) - float(q[row, a_e]), abs=1e-6)
    clear = torch.tensor([[5.0, 1.0]])
    assert losses.margin_loss(clear, torch.tensor([0]), 0.8).item() == 0


def test_the_sampled_soft_maximum_estimates_an_integral() -> None:
    """log of the integral of exp(-a^2) over (-1, 1), from uniform samples and from those of another density."""
    generator = torch.Generator().manual_seed(0)
    expected = math.log(math.sqrt(math.pi) * math.erf(1))
    uniform = 2 * torch.rand(200_000, generator=generator) - 1
    found = losses.sampled_soft_maximum(-uniform.square(), torch.full((200_000,), -math.log(2)))
    assert found.item() == pytest.approx(expected, abs=0.01)
    rising = 2 * torch.rand(200_000, generator=generator).sqrt() - 1  # with the density (a + 1) / 2
    logp = ((rising + 1) / 2).log()
    found = losses.sampled_soft_maximum(-rising.square(), logp)
    assert found.item() == pytest.approx(expected, abs=0.02)
