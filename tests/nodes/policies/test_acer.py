"""ACER: its gradient, its trust region and its targets against references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Array, Batch, Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes import losses
from flowrl.nodes.exploring import RandomActions
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.acer import Acer
from tests.nodes.learn_modes import learn_from, tensors

OBS, ACTION = Column("float32", (3,)), Column("int64", n=3)


def policy(**params: Any) -> Acer:
    given = {"model": Mlp(hidden=[8]), "unroll_steps": 5, **params}
    return Acer(obs=OBS, action=ACTION, **given)


def sequences(count: int = 4, steps: int = 5, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    seen = rng.standard_normal((count, steps + 1, 3)).astype(np.float32)
    lengths = np.array([steps, steps - 2, 1, steps])
    time = np.arange(steps)
    discount = np.full((count, steps), 0.9, np.float32)
    discount[1, lengths[1] - 1] = 0  # this one terminates
    return {
        "obs": seen[:, :-1].copy(),
        "next_obs": seen[:, 1:].copy(),
        "action": rng.integers(3, size=(count, steps)),
        "reward": rng.standard_normal((count, steps)).astype(np.float32),
        "discount": discount,
        "last": time >= lengths[:, None] - 1,
        "valid": time < lengths[:, None],
        "behaviour": rng.dirichlet(np.ones(3), (count, steps)).astype(np.float32),
    }


def test_the_gradient_equals_hand_worked_numbers() -> None:
    p, behaviour = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.1, 0.9]])
    q, returns = torch.tensor([[1.0, 0.0]]), torch.tensor([2.0])
    found = losses.bias_corrected_gradient(p, behaviour, torch.tensor([0]), q, returns, 2.0)
    # V = 0.5; rho = 5 -> 2; 2 * (2 - 0.5) * ([1, 0] - p) = [1.5, -1.5]
    # max(0, p - 2 behaviour) = [0.3, 0]; times Q - V: [0.15, 0]; minus p * 0.15: [0.075, -0.075]
    torch.testing.assert_close(found, torch.tensor([[1.575, -1.575]]))


@pytest.mark.parametrize("limit", [0.3, 1.0, 10.0])
def test_the_correction_makes_the_truncated_gradient_unbiased(limit: float) -> None:
    """Over the behaviour's actions, its mean is sum_a p(a) (Q(a) - V) dlog p(a), whatever the limit."""
    rng = np.random.default_rng(0)
    p, behaviour = torch.from_numpy(rng.dirichlet(np.ones(4), 2))
    q = torch.from_numpy(rng.standard_normal(4))
    expected = p * (q - p @ q)
    actions = torch.arange(4)
    rows = [x.expand(4, 4) for x in (p, behaviour)]
    each = losses.bias_corrected_gradient(*rows, actions, q.expand(4, 4), q, limit)
    torch.testing.assert_close(behaviour @ each, expected)


def test_the_gradient_is_that_of_the_logarithms_by_the_logits() -> None:
    table = sequences(4, 6)
    logits = torch.randn((6, 3), requires_grad=True, generator=torch.Generator().manual_seed(0))
    behaviour = torch.from_numpy(table["behaviour"][0])
    action, returns = torch.from_numpy(table["action"][0]), torch.from_numpy(table["reward"][0])
    q, limit = torch.from_numpy(table["obs"][0]), 0.8
    logp = logits.log_softmax(-1)
    p = logp.detach().exp()
    v = (p * q).sum(-1)
    rho = p / behaviour
    taken = rho.gather(1, action[:, None]).squeeze(1).clamp(max=limit)
    gain = (taken * (returns - v) * logp.gather(1, action[:, None]).squeeze(1)).sum()
    rest = (1 - limit / rho).clamp(min=0) * p * (q - v[:, None])
    (expected,) = torch.autograd.grad(gain + (rest * logp).sum(), logits)
    found = losses.bias_corrected_gradient(p, behaviour, action, q, returns, limit)
    torch.testing.assert_close(found, expected)


def test_the_trust_region_takes_away_what_exceeds_the_limit() -> None:
    gradient, constraint = torch.tensor([[3.0, 4.0]]), torch.tensor([[2.0, 0.0]])
    # k · g = 6; (6 - 1) / 4 * [2, 0] = [2.5, 0]
    found = losses.limited_gradient(gradient, constraint, 1.0)
    torch.testing.assert_close(found, torch.tensor([[0.5, 4.0]]))
    assert torch.equal(losses.limited_gradient(gradient, -constraint, 1.0), gradient)
    assert torch.equal(losses.limited_gradient(gradient, 0 * constraint, 1.0), gradient)


def test_the_trust_region_is_that_of_the_average_policy() -> None:
    """Far from it, limited and unlimited gradients differ; at it, the slope is 0 and they are equal."""
    learned = []
    for slope in (1e-3, None):
        mode = policy(divergence_slope=slope).learn_mode(0)
        learn_from(mode, Batch(sequences()))
        at_it = mode.weights()
        for parameter in mode.net_target.module.parameters():
            parameter.data.mul_(3)
        learn_from(mode, Batch(sequences()))
        learned.append((at_it, mode.weights()))
    (at_it, far), (at_it_2, far_2) = learned
    assert all(np.array_equal(at_it[n], at_it_2[n]) for n in at_it)
    assert not all(np.array_equal(far[n], far_2[n]) for n in far)


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_returns_equal_those_of_a_plain_loop(lambda_: float) -> None:
    mode = policy(retrace_lambda=lambda_).learn_mode(3)
    table = sequences()
    b = tensors(Batch(table))
    with torch.no_grad():
        heads = mode.unrolled(mode.net, b)
        p, q = heads["logits"].softmax(-1), heads["q"]
        found = mode.returns(b, p, q).numpy()
    p, q = p.numpy(), q.numpy()
    v = (p * q).sum(-1)
    for w in range(4):
        steps, after = int(table["valid"][w].sum()), 0.0
        for t in reversed(range(steps)):
            action = table["action"][w, t]
            goal = table["reward"][w, t] + table["discount"][w, t] * (v[w, t + 1] + after)
            assert found[w, t] == pytest.approx(goal, abs=1e-5)
            ratio = p[w, t, action] / table["behaviour"][w, t, action]
            after = lambda_ * min(1.0, ratio) * (goal - q[w, t, action])


def test_invalid_steps_have_no_effect() -> None:
    table = sequences()
    others = {name: array.copy() for name, array in table.items()}
    others["reward"][~table["valid"]] = 99
    others["action"][~table["valid"]] = 0
    learned = []
    for given in (table, others):
        mode = policy().learn_mode(3)
        result = learn_from(mode, Batch(given))
        assert result.priorities is not None
        assert (result.priorities[~table["valid"]] == 0).all()
        learned.append(mode.weights())
    assert all(np.array_equal(learned[0][n], learned[1][n]) for n in learned[0])


def test_a_collector_gives_the_probabilities_of_its_draws() -> None:
    described = policy()
    collect, learn = described.collect_mode(0), described.learn_mode(0)
    collect.load(State(learn.weights()))
    obs = np.random.default_rng(0).standard_normal((2000, 3)).astype(np.float32)
    obs[:] = obs[:1]
    found = collect.forward(obs)
    expected = learn.net(torch.from_numpy(obs))["logits"].softmax(-1).detach().numpy()
    np.testing.assert_allclose(found["behaviour"], expected, atol=1e-6)
    shares = np.bincount(found["action"], minlength=3) / 2000
    np.testing.assert_allclose(shares, expected[0], atol=0.05)


def test_it_learns_with_the_memory_of_a_recurrent_model() -> None:
    mode = policy(model=Gru(size=4)).learn_mode(0)
    table = {**sequences(), "memory": np.ones((4, 4), np.float32)}
    assert mode.policy.learn_columns().keys() == table.keys()
    before = mode.weights()
    learn_from(mode, Batch({**table, "weight": np.ones(4, np.float32)}))
    changed = {n for n, x in mode.weights().items() if not np.array_equal(x, before[n])}
    assert "trunk.1.weight_hh" in changed


def test_exploring_steps_are_refused() -> None:
    with pytest.raises(UnsoundError, match="acer learns from the likelihood of its actions"):
        policy(explore=[RandomActions(share=0.1)])


def test_the_entropy_of_valid_steps_is_in_the_loss_with_its_weight() -> None:
    """The gradients of two weights differ by that of the entropy."""
    table, grads = sequences(), []
    for weight in (0.0, 0.5):
        mode: Any = policy(entropy_weight=weight, max_grad_norm=None).learn_mode(3)
        logits = mode.unrolled(mode.net, tensors(Batch(table)))["logits"][:, :-1]
        p = logits.softmax(-1)
        valid = torch.from_numpy(table["valid"])
        entropy = -(p * p.log()).sum(-1)[valid].mean()
        expected = torch.autograd.grad(entropy, mode.net.parameters, materialize_grads=True)
        learn_from(mode, Batch(table))
        grads.append(mode.net.grads.clone())
    flat = torch.cat([grad.reshape(-1) for grad in expected])
    assert flat.abs().max() > 1e-4
    torch.testing.assert_close(grads[1] - grads[0], -0.5 * flat, rtol=1e-3, atol=1e-6)
