"""FQF: where fractions are best, which losses move them, and mean returns at unequal fractions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count
from flowrl.nodes import losses
from flowrl.nodes.models.heads import midpoints
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.fqf import Fqf, mean_returns
from tests.nodes.learn_modes import DISCRETE, OBS, learn_from, rows, tensors


def policy(**params: Any) -> Fqf:
    given = {"model": Mlp(hidden=[16]), "fractions": 4, "cosines": 8, **params}
    return Fqf(obs=OBS, action=DISCRETE, **given)


def quantile(tau: Any) -> Any:
    """A quantile function whose slope is not constant."""
    return tau**3 + 0.5 * tau


def distance(tau: Any, points: int = 200_000) -> float:
    """The 1-Wasserstein distance: the integral of |F^-1(x) - F^-1(midpoint of x's interval)|."""
    x = (np.arange(points) + 0.5) / points
    edges = np.concatenate([[0.0], tau, [1.0]])
    middle = (edges[:-1] + edges[1:]) / 2
    interval = np.searchsorted(tau, x)
    return float(np.abs(quantile(x) - quantile(middle[interval])).mean())


def test_the_gradient_of_fractions_is_that_of_the_distance() -> None:
    tau = np.array([0.2, 0.45, 0.8])
    edges = np.concatenate([[0.0], tau, [1.0]])
    z_mid = torch.from_numpy(quantile((edges[:-1] + edges[1:]) / 2))[None]
    found = losses.fraction_gradient(torch.from_numpy(quantile(tau))[None], z_mid)[0]
    for i in range(3):
        shift = np.zeros(3)
        shift[i] = 1e-3
        slope = (distance(tau + shift) - distance(tau - shift)) / 2e-3
        assert float(found[i]) == pytest.approx(slope, abs=1e-3)


def test_the_gradient_of_fractions_equals_hand_worked_numbers() -> None:
    found = losses.fraction_gradient(torch.tensor([[2.0, 5.0]]), torch.tensor([[1.0, 4.0, 7.0]]))
    # 2 * 2 - 4 - 1 and 2 * 5 - 7 - 4
    torch.testing.assert_close(found, torch.tensor([[-1.0, -1.0]]))


def test_midpoints_of_unequal_shares() -> None:
    shares = torch.tensor([[0.2, 0.5, 0.3]])
    torch.testing.assert_close(midpoints(shares), torch.tensor([[0.1, 0.45, 0.85]]))
    np.testing.assert_allclose(midpoints(shares.numpy()), [[0.1, 0.45, 0.85]], rtol=1e-6)


def test_mean_returns_are_weighted_by_the_shares() -> None:
    heads = {"shares": torch.tensor([[0.25, 0.75]]), "q": torch.tensor([[[4.0, 0.0], [8.0, 2.0]]])}
    torch.testing.assert_close(mean_returns(heads), torch.tensor([[7.0, 1.5]]))


def changed(**settings: float) -> set[str]:
    """The parts of the network that a train iteration moves."""
    mode = policy().learn_mode(0)
    before = mode.q.weights()
    learn_from(mode, rows(), **settings)
    after = mode.q.weights()
    return {n.rpartition(".")[0] for n in before if not np.array_equal(before[n], after[n])}


def test_each_loss_moves_its_own_part_of_the_network() -> None:
    assert changed(lr=0.0, fraction_lr=0.01) == {"shares.out"}
    assert changed(lr=0.01, fraction_lr=0.0) == {"trunk.0", "q.embedding", "q.out"}


def test_proposals_give_no_gradient_to_the_features() -> None:
    module = policy().learn_mode(0).q.module
    module(torch.randn((5, 4)))["shares"].square().sum().backward()
    assert module.trunk[0].weight.grad.abs().sum() == 0
    assert module.shares.out.weight.grad.abs().sum() > 0


def test_fractions_move_to_where_they_approximate_returns_best() -> None:
    """With quantiles that stay as they are, proposals find the fractions that a search finds."""
    described = policy(fraction_lr=0.01, fractions=3)
    mode, b = described.learn_mode(0), tensors(rows(1))
    mode.now.__dict__.update(described.command(Count()))
    with torch.no_grad():  # quantiles that increase, slowly at first
        embedding = mode.q.module.q.embedding
        embedding.weight.zero_()
        embedding.weight[:, 1] = -1.0  # of cos(pi tau)
        embedding.bias.fill_(1.0)
        embedding.weight[:, 2] = 0.25  # of cos(2 pi tau)
        mode.q.module.q.out.weight.abs_()
        x = (torch.arange(1000) + 0.5) / 1000
        z = mode.q(b.obs, tau=x[None])["q"][0, :, int(b.action)]

    def wasserstein(tau: Any) -> float:
        edges = torch.cat([torch.zeros(1), tau, torch.ones(1)])
        middle = (edges[:-1] + edges[1:]) / 2
        z_mid = z[(middle * 1000).long()]
        return float((z - z_mid[torch.searchsorted(tau, x)]).abs().mean())

    def proposed() -> Any:
        with torch.no_grad():
            return mode.q(b.obs)["shares"][0].cumsum(-1)[:-1]

    before = wasserstein(proposed())
    for _ in range(300):
        heads = mode.q(b.obs)
        z_mid = losses.chosen_each(heads["q"].transpose(1, 2), b.action).detach()
        mode.propose(b, heads["shares"], z_mid)
    grid = torch.arange(0.02, 1.0, 0.02)
    best = min(wasserstein(torch.stack([t, u])) for t in grid for u in grid if t < u)
    assert best < 0.95 * before
    assert wasserstein(proposed()) < 1.01 * best


def test_the_entropy_keeps_shares_equal() -> None:
    spread = []
    for weight in (0.0, 100.0):
        mode = policy(fraction_lr=0.01, fraction_entropy=weight).learn_mode(0)
        for seed in range(30):
            learn_from(mode, rows(seed=seed))
        with torch.no_grad():
            spread.append(float(mode.q(tensors(rows()).obs)["shares"].std(-1).mean()))
    assert spread[1] < 0.2 * spread[0]


def test_a_model_that_shares_no_layer_is_refused() -> None:
    with pytest.raises(UnsoundError, match="no layer is shared"):
        policy(model=Mlp(hidden=[8], shared=False))


def test_the_proposals_go_down_a_loss_weighted_as_a_prioritised_buffer_says() -> None:
    described = policy(fraction_entropy=0.3)
    weight = np.linspace(0.1, 2.0, len(rows()), dtype=np.float32)
    mode, b = described.learn_mode(0), tensors(rows(weight=weight))
    mode.now.__dict__.update(described.command(Count()))
    heads = mode.q(b.obs)
    shares, z_mid = heads["shares"], losses.chosen_each(heads["q"].transpose(1, 2), b.action)
    tau = shares.cumsum(-1)[:, :-1]
    z = losses.chosen_each(mode.q(b.obs, tau=tau)["q"].transpose(1, 2), b.action)
    slope = (2 * z - z_mid[:, :-1] - z_mid[:, 1:]).detach()
    entropy = -(shares * shares.log()).sum(1).mean()
    expected = (b.weight * (slope * tau).sum(1)).mean() - 0.3 * entropy
    out = mode.q.module.shares.out.weight
    [gradient] = torch.autograd.grad(expected, out)
    descended: list[torch.Tensor] = []
    mode.proposals.descend = lambda loss, lr: descended.append(loss)
    mode.propose(b, mode.q(b.obs)["shares"], z_mid.detach())
    torch.testing.assert_close(torch.autograd.grad(descended[0], out)[0], gradient)
