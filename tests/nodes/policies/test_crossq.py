"""CrossQ: batch renormalisation, and from which rows its statistics are."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.models.layers import BatchNormLayer
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.crossq import Crossq
from flowrl.nodes.policies.sac import Sac
from tests.nodes.learn_modes import CONTINUOUS, OBS, learn_from, rows, same_bits, tensors

SMALL = Mlp(hidden=[8], norm="batch")
NO_LIMIT = {"ratio_limit": 1e9, "shift_limit": 1e9, "warmup_batches": 0}


def layer(size: int = 3, **params: Any) -> Any:
    return BatchNormLayer(**params).module((size,), "uniform")


def policy(**params: Any) -> Crossq:
    given = {"actor": SMALL, "critic": SMALL, "actor_every_iters": 2, **params}
    return Crossq(obs=OBS, action=CONTINUOUS, **given)


def batch(seed: int = 0) -> Any:
    action = np.random.default_rng(seed).uniform(-1, 1, (32, 2)).astype(np.float32)
    return rows(seed=seed, action=action)


def values(rows_: int = 64, size: int = 3) -> torch.Tensor:
    return torch.randn((rows_, size), generator=torch.Generator().manual_seed(0)) * 2 + 1


def test_a_batch_is_normalised_by_its_own_mean_and_deviation_at_first() -> None:
    made = layer(1, momentum=0.9)
    found = made(torch.tensor([[1.0], [5.0]]))  # mean 3, deviation 2
    torch.testing.assert_close(found, torch.tensor([[-1.0], [1.0]]), rtol=1e-5, atol=0)
    torch.testing.assert_close(made.mean, torch.tensor([0.3]))
    torch.testing.assert_close(made.var, torch.tensor([0.9 + 0.4]))
    assert made.batches.tolist() == [1]


def test_without_limits_a_batch_is_normalised_by_the_running_averages() -> None:
    """Ioffe 2017, section 3: (x - m_B) / s_B r + d is then (x - m) / s."""
    made, x = layer(**NO_LIMIT), values()
    made.mean.copy_(torch.tensor([0.5, 1.0, 2.0]))
    made.var.copy_(torch.tensor([1.0, 4.0, 0.25]))
    expected = made.eval()(x)
    torch.testing.assert_close(made.train()(x), expected)


def test_corrections_are_limited() -> None:
    made = layer(1, ratio_limit=1.5, shift_limit=0.5, warmup_batches=0)
    found = made(torch.tensor([[1.0], [5.0]]))  # against mean 0 and deviation 1: r = 2, d = 3
    torch.testing.assert_close(found, torch.tensor([[-1.0], [2.0]]), rtol=1e-4, atol=0)


def test_gradients_are_those_of_batch_normalisation() -> None:
    """r and d are constants, so the gradient goes through the mean and deviation of the batch."""
    x = values().requires_grad_()
    made, torchs = layer(), torch.nn.BatchNorm1d(3, eps=1e-5)
    (found,) = torch.autograd.grad(made(x).square().sum() + made(x).pow(3).sum(), x)
    (expected,) = torch.autograd.grad(torchs(x).square().sum() + torchs(x).pow(3).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_acting_in_numpy_normalises_by_the_averages_that_were_sent() -> None:
    mode = policy().learn_mode(0)
    for seed in range(5):
        learn_from(mode, batch(seed))
    weights = mode.weights()
    assert weights["trunk.0.batches"].tolist() == [3]  # iterations 0, 2 and 4
    assert not np.array_equal(weights["trunk.0.mean"], np.zeros(4))
    act = mode.policy.nets["actor"].model.inference_model(
        OBS, mode.policy.nets["actor"].heads, ("mean", "log_std")
    )
    act.load(weights)
    obs = batch()["obs"]
    expected = mode.actor(torch.from_numpy(obs))["mean"].detach().numpy()
    np.testing.assert_allclose(act(obs)["mean"], expected, rtol=1e-4, atol=1e-6)


def test_the_statistics_of_the_critics_are_those_of_one_pass_of_both_kinds_of_rows() -> None:
    mode, b = policy().learn_mode(0), tensors(batch())
    mode.now.__dict__.update(lr=0.0, critic_lr=0.0)
    b.add(unit_action=b.action)
    mode.learn_critic(b, torch.tensor(0.1))
    first = mode.critic.module.copies[0].trunk[0]
    assert first.batches.tolist() == [1]
    seen = torch.cat([b.obs, b.next_obs])
    torch.testing.assert_close(first.mean[:4], 0.01 * seen.mean(0))
    torch.testing.assert_close(first.var[:4], 0.99 + 0.01 * seen.var(0, correction=0))


def test_passes_without_gradients_of_their_own_change_no_statistics() -> None:
    mode, b = policy().learn_mode(0), tensors(batch())
    mode.now.__dict__.update(lr=0.0, critic_lr=0.0)
    b.add(unit_action=b.action)
    before = mode.critic.weights()
    mode.learn_actor(b, torch.tensor(0.1))
    assert same_bits(before, mode.critic.weights())
    before = mode.actor.weights()
    mode.learn_critic(b, torch.tensor(0.1))
    assert same_bits(before, mode.actor.weights())


def test_gradients_are_those_of_one_pass_with_constant_targets() -> None:
    mode, b = policy().learn_mode(0), tensors(batch())
    mode.now.__dict__.update(lr=0.0, critic_lr=0.0)
    b.add(unit_action=b.action)
    module, alpha = copy.deepcopy(mode.critic.module).train(), torch.tensor(0.1)
    with torch.no_grad():
        state = mode.generator.get_state()
        action_tp1, logp_tp1 = mode.draw(b.next_obs)
        mode.generator.set_state(state)
    seen = torch.cat([b.obs, b.next_obs])
    q = module({"obs": seen, "action": torch.cat([b.action, action_tp1])})["q"]
    target = b.reward + b.discount * (q[32:].amin(1) - alpha * logp_tp1)
    loss = (q[:32] - target.detach()[:, None]).square().sum(1).mean()
    expected = torch.autograd.grad(loss, list(module.parameters()))
    mode.learn_critic(b, alpha)
    torch.testing.assert_close(mode.critic.grads, torch.cat([g.reshape(-1) for g in expected]))


def test_the_weights_of_a_prioritised_buffer_scale_the_loss() -> None:
    found = []
    for weight in (1.0, 0.5):
        mode = policy().learn_mode(0)
        table = batch().replace(weight=np.full(32, weight, np.float32))
        found.append(float(learn_from(mode, table).metrics["critic_loss"]))
    assert found[1] == pytest.approx(found[0] / 2, rel=1e-5)


def test_the_target_bootstraps_from_the_same_critics() -> None:
    """With a discount of 0 the next values do not matter; otherwise they do."""
    found = []
    for discount in (0.0, 0.9):
        mode = policy().learn_mode(0)
        table = batch().replace(discount=np.full(32, discount, np.float32))
        result = learn_from(mode, table)
        found.append(np.asarray(result.priorities))
    assert not np.allclose(found[0], found[1])


@pytest.mark.parametrize("cls", [Sac])
def test_other_algorithms_refuse_statistics_of_batches(cls: Any) -> None:
    with pytest.raises(UnsoundError, match="sac does not learn the statistics of batch norm"):
        cls(obs=OBS, action=CONTINUOUS, critic=SMALL)


def test_a_layer_needs_a_row_of_features() -> None:
    with pytest.raises(UnsoundError, match="batch renormalisation needs a row of features"):
        BatchNormLayer().output_shape((3, 8, 8))
    assert BatchNormLayer().output_shape((5,)) == (5,)


def test_a_batch_normalised_mlp_normalises_features_and_hidden_layers() -> None:
    module = Mlp(hidden=[4, 5], norm="batch").build(Column("float32", (3,)), {}, 0)
    sizes = [len(x.mean) for x in module.modules() if hasattr(x, "batches")]
    assert sizes == [3, 4, 5]
