"""TRPO: its solver, its Fisher matrix and its search against references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count
from flowrl.nodes import losses
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.trpo import Trpo
from tests.nodes.learn_modes import CONTINUOUS, DISCRETE, OBS, rows, tensors


def policy(**params: Any) -> Trpo:
    small = Mlp(hidden=[6], activation="tanh")
    return Trpo(**{"obs": OBS, "action": DISCRETE, "model": small, "critic": small, **params})


def prepared(described: Trpo, seed: int = 0) -> tuple[Any, Any]:
    """A learn mode, and rows with the likelihoods of its own policy and random advantages."""
    mode, b = described.learn_mode(seed), tensors(rows(64, seed))
    mode.now.__dict__.update(described.command(Count()))
    if described.action is CONTINUOUS:
        b.add(unclipped=torch.randn((64, 2), generator=torch.Generator().manual_seed(seed)))
    with torch.no_grad():
        logp, _ = described.distribution.logp_entropy(mode.net(b.obs), b)
    advantage = torch.from_numpy(np.random.default_rng(seed).standard_normal(64, np.float32))
    b.add(logp=logp, advantage=advantage)
    return mode, b


def test_conjugate_gradients_solve_a_hand_worked_system() -> None:
    a, b = torch.tensor([[4.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    found = losses.conjugate_gradient(lambda x: a @ x, b, 2)
    # 4 x + y = 1 and x + 3 y = 2
    torch.testing.assert_close(found, torch.tensor([1 / 11, 7 / 11]))


def test_conjugate_gradients_equal_a_direct_solution() -> None:
    root = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 8)))
    a, b = root @ root.T + torch.eye(8), torch.arange(8.0, dtype=torch.float64)
    found = losses.conjugate_gradient(lambda x: a @ x, b, 8)
    torch.testing.assert_close(found, torch.linalg.solve(a, b))
    assert (losses.conjugate_gradient(lambda x: a @ x, 0 * b, 8) == 0).all()


def test_a_natural_step_has_the_divergence_of_the_limit() -> None:
    a, x = torch.tensor([[2.0, 0.0], [0.0, 8.0]]), torch.tensor([3.0, 1.0])
    step = losses.natural_step(x, a @ x, 0.13)
    # x · A x = 18 + 8, so the scale is sqrt(0.26 / 26) = 0.1
    torch.testing.assert_close(step, torch.tensor([0.3, 0.1]))
    torch.testing.assert_close(0.5 * step @ a @ step, torch.tensor(0.13))


def test_the_fisher_product_is_the_mean_of_the_scores_products() -> None:
    """F = E[score score^T], with the expectation over observations and both actions."""
    mode, b = prepared(policy(damping=0.25))
    heads = mode.net(b.obs)
    old = {name: head.detach() for name, head in heads.items()}
    product = mode.fisher_product(old, heads)
    fisher = torch.zeros(len(mode.net.params), len(mode.net.params))
    logp = mode.net(b.obs)["logits"].log_softmax(-1)
    for row in range(64):
        for action in range(2):
            score = mode.gradient(logp[row, action], retain_graph=True)
            fisher += logp[row, action].exp().detach() * torch.outer(score, score) / 64
    for seed in range(3):
        x = torch.randn(len(fisher), generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(product(x), fisher @ x + 0.25 * x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS], ids=["discrete", "real"])
@pytest.mark.parametrize("limit", [0.01, 2.0])
def test_a_step_improves_the_policy_and_stays_within_the_limit(action: Any, limit: float) -> None:
    """The quadratic model of the divergence is wrong for large limits: steps are shrunk until they fit."""
    described = policy(action=action, divergence_limit=limit)
    shares = []
    for seed in range(4):
        mode, b = prepared(described, seed)
        old = {name: head.detach().clone() for name, head in mode.net(b.obs).items()}
        gain, _ = mode.gain(old, b)
        shares.append(mode.improve_policy(b)["step_share"])
        new = mode.net(b.obs)
        kl = described.distribution.divergence(old, new).mean()
        assert 0.05 * limit < kl <= limit
        assert mode.gain(new, b)[0] > gain
    assert all(0 < share <= 1 for share in shares)
    if limit == 2.0 and action is CONTINUOUS:
        assert min(shares) < 1


def test_without_an_improvement_the_policy_stays() -> None:
    mode, b = prepared(policy(trials=3))
    b.add(advantage=torch.zeros(64))
    before = mode.net.params.clone()
    assert mode.improve_policy(b)["step_share"] == 0
    assert torch.equal(mode.net.params, before)


def test_the_gain_is_the_mean_of_ratio_times_advantage() -> None:
    mode, b = prepared(policy())
    b.add(logp=b.logp - 0.5)
    with torch.no_grad():
        heads = mode.net(b.obs)
        logp = losses.chosen(heads["logits"].log_softmax(1), b.action)
        gain, _ = mode.gain(heads, b)
    torch.testing.assert_close(gain, ((logp - b.logp).exp() * b.advantage).mean())


def test_the_policy_is_restored_if_no_trial_improves_it() -> None:
    mode, b = prepared(policy(trials=3))
    gain = mode.gain
    mode.gain = lambda heads, b: tuple(0 * x for x in gain(heads, b))
    mode.gradient = lambda *_, **__: torch.ones_like(mode.net.params)
    before = mode.net.params.clone()
    assert mode.improve_policy(b)["step_share"] == 0
    assert torch.equal(mode.net.params, before)


def test_the_limited_divergence_is_that_of_the_new_policy_from_the_old_one() -> None:
    described = policy(action=CONTINUOUS, divergence_limit=1.0)
    mode, b = prepared(described)
    old = {name: head.detach().clone() for name, head in mode.net(b.obs).items()}
    kl = mode.improve_policy(b)["kl"]
    with torch.no_grad():
        new = mode.net(b.obs)
    forward, backward = (
        described.distribution.divergence(*pair).mean() for pair in ((old, new), (new, old))
    )
    torch.testing.assert_close(kl, forward)
    assert abs(forward - backward) > 1e-3


def test_values_go_down_their_squared_distance_from_the_returns() -> None:
    described = policy(critic_epochs=1, minibatch_size=1000)
    mode, batch = described.learn_mode(0), rows(64)
    b = tensors(batch)
    _, returns = mode.advantages(b)
    loss = (mode.critic(b.obs)["value"] - returns).square().mean()
    expected = torch.autograd.grad(loss, mode.critic.parameters)
    mode.forward(batch, described.command(Count()))
    torch.testing.assert_close(mode.critic.grads, torch.cat([g.reshape(-1) for g in expected]))


def test_the_optimiser_changes_the_values_alone() -> None:
    described = policy()
    mode = described.learn_mode(0)
    command = {**described.command(Count()), "divergence_limit": 1e-30}
    net, critic = mode.net.params.clone(), mode.critic.params.clone()
    mode.forward(rows(64), command)
    assert torch.equal(mode.net.params, net)
    assert not torch.equal(mode.critic.params, critic)


def test_a_recurrent_model_is_refused() -> None:
    with pytest.raises(UnsoundError, match="trpo learns from single steps"):
        policy(model=Gru(size=4))
