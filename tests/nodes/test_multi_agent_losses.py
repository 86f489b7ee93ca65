"""The mathematics of several agents against slow, plain definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from flowrl.nodes import multi_agent_losses as losses
from flowrl.nodes.models.action_mask import FORBIDDEN
from tests.references import multi_agent as slow

RNG = np.random.default_rng(0)


def random(*shape: int) -> Tensor:
    return torch.from_numpy(RNG.standard_normal(shape, np.float32))


def test_the_counterfactual_baseline_enumerates_the_other_actions_of_one_agent() -> None:
    """Q is a table of joint actions; the baseline is the mean over what one agent could have done instead."""
    table = RNG.standard_normal((3, 4, 2))  # of the actions of three agents
    p = [RNG.dirichlet(np.ones(n)) for n in table.shape]
    for joint in np.ndindex(*table.shape):
        for agent, n in enumerate(table.shape):
            q = [table[(*joint[:agent], a, *joint[agent + 1 :])] for a in range(n)]
            found = losses.counterfactual_advantage(
                torch.tensor(q), torch.tensor(p[agent]), torch.tensor(joint[agent])
            )
            expected = slow.counterfactual_advantage(table, p[agent], joint, agent)
            assert found.item() == pytest.approx(expected)


def test_the_counterfactual_baseline_has_no_expected_gradient() -> None:
    p, q = torch.tensor([0.2, 0.5, 0.3]), random(3)
    advantages = [losses.counterfactual_advantage(q, p, torch.tensor(a)) for a in range(3)]
    assert (p * torch.stack(advantages)).sum().item() == pytest.approx(0, abs=1e-6)


def test_floored_probabilities_leave_each_allowed_action_a_chance() -> None:
    logits = torch.tensor([[5.0, -3.0, FORBIDDEN, 0.0], [9.0, FORBIDDEN, FORBIDDEN, FORBIDDEN]])
    found = losses.floored_probabilities(logits, 0.3)
    total = math.exp(5) + math.exp(-3) + 1
    one = [0.7 * math.exp(x) / total + 0.1 for x in (5, -3, 0)]
    np.testing.assert_allclose(found[0], [*one[:2], 0, one[2]], rtol=1e-6)
    np.testing.assert_allclose(found[1], [1, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(losses.floored_probabilities(logits, 0.0), logits.softmax(-1))


def test_an_agent_sees_the_actions_of_others_in_their_places() -> None:
    actions = torch.arange(1.0, 7.0).view(1, 3, 2)
    found = losses.actions_of_others(actions)[0].tolist()
    assert found == [[0, 0, 3, 4, 5, 6], [1, 2, 0, 0, 5, 6], [1, 2, 3, 4, 0, 0]]


def test_each_agent_alone_acts_anew() -> None:
    actions, own = random(2, 3, 2), random(2, 3, 2)
    found = losses.with_own_action(actions, own)
    for row in range(2):
        for agent in range(3):
            joint = actions[row].clone()
            joint[agent] = own[row, agent]
            assert torch.equal(found[row, agent], joint)


def test_gumbel_softmax_draws_from_the_softmax_with_the_gradient_of_the_soft_sample() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    uniform = torch.from_numpy(RNG.random((40_000, 3)))
    drawn = losses.gumbel_softmax(logits.expand(40_000, 3), uniform, 0.7)
    assert set(drawn.detach().unique().round().tolist()) == {0, 1}
    np.testing.assert_allclose(drawn.detach().mean(0), logits.detach().softmax(0), atol=0.01)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    (drawn[0] @ weights).backward()
    at = logits.detach().clone().requires_grad_()
    soft = ((at - (-uniform[0].log()).log()) / 0.7).softmax(0)
    (soft @ weights).backward()
    torch.testing.assert_close(logits.grad, at.grad)


def test_gumbel_softmax_is_finite_where_the_noise_is_extreme() -> None:
    uniform = torch.tensor([0.0, 1 - 2**-24])
    assert losses.gumbel_softmax(torch.zeros(2), uniform, 1.0).tolist() == [0, 1]


def test_the_factor_is_the_product_of_the_ratios_of_agents_before() -> None:
    ratios = RNG.uniform(0.5, 2, (4, 3))  # rows, agents
    factor = torch.ones(4, dtype=torch.float64)
    for agent in (2, 0, 1):
        factor = losses.next_factor(factor, torch.from_numpy(np.log(ratios[:, agent])))
    np.testing.assert_allclose(factor, slow.product_of_ratios(ratios, (2, 0, 1)))
