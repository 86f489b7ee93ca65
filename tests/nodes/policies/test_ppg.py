"""PPG: when its auxiliary phase happens, on which rows, and that it keeps the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Batch
from flowrl.core.facts import UnsoundError
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.ppg import Ppg, StoredRows
from tests.nodes.learn_modes import DISCRETE, OBS, learn_from, rows, same_bits, tensors


def policy(**params: Any) -> Ppg:
    small = Mlp(hidden=[8], activation="tanh")
    given = {"model": small, "critic": small, "auxiliary_every_iters": 3, "lr": 0.01, **params}
    return Ppg(obs=OBS, action=DISCRETE, **given)


def test_the_auxiliary_phase_follows_every_so_many_tokens_and_has_their_rows() -> None:
    mode = policy().learn_mode(0)
    found: list[Any] = []
    learn_auxiliary = mode.learn_auxiliary

    def recorded(b: Any) -> Any:
        found.append(np.asarray(b.obs))
        return learn_auxiliary(b)

    mode.learn_auxiliary = recorded
    batches = [rows(16, seed) for seed in range(7)]
    phases = ["auxiliary_loss" in learn_from(mode, batch).metrics for batch in batches]
    assert phases == [False, False, True, False, False, True, False]
    for obs, first in zip(found, (0, 3), strict=True):
        expected = np.concatenate([b["obs"] for b in batches[first : first + 3]])
        np.testing.assert_array_equal(obs, expected)
    assert len(mode.rows.tokens) == 1


@pytest.mark.parametrize("normalise_values", [False, True])
def test_the_auxiliary_targets_are_the_returns_of_the_policy_phase(normalise_values: bool) -> None:
    mode = policy(normalise_values=normalise_values).learn_mode(0)
    batch = rows(16)
    learn_from(mode, batch)
    target = mode.rows.tokens[0]["returns"]
    again = policy().learn_mode(0)
    _, expected, _ = again.targets(tensors(batch))
    np.testing.assert_allclose(target, expected.numpy(), rtol=1e-4, atol=1e-5)


def moved(clone_weight: float) -> tuple[float, float]:
    """The divergence that an auxiliary phase causes, and the auxiliary loss after it."""
    mode = policy(clone_weight=clone_weight, auxiliary_epochs=30).learn_mode(0)
    learn_from(mode, rows(128))
    stored = Batch(mode.rows.tokens[0])
    before = mode.net(tensors(stored).obs)["logits"].detach()
    b = tensors(stored)
    mode.learn_auxiliary(b)
    with torch.no_grad():
        after = mode.net(b.obs)
        error = (after["auxiliary"] - b.target).square().mean()
        kl = mode.policy.distribution.divergence({"logits": before}, after).mean()
    return float(kl), float(error)


def test_the_divergence_keeps_the_policy_while_its_network_learns_values() -> None:
    free, kept = moved(0.0), moved(10.0)
    assert kept[0] < 0.1 * free[0]
    assert kept[1] < 1.5 * free[1]


def test_values_are_learned_in_layers_of_the_policy() -> None:
    mode = policy().learn_mode(0)
    learn_from(mode, rows(128))
    before = mode.net.weights()
    mode.learn_auxiliary(tensors(Batch(mode.rows.tokens[0])))
    after = mode.net.weights()
    for name in ("trunk.0.weight", "auxiliary.out.weight"):
        assert not same_bits(before[name], after[name])


def test_the_network_of_values_learns_in_both_phases() -> None:
    mode = policy().learn_mode(0)
    first = mode.critic.weights()
    learn_from(mode, rows(128))
    between = mode.critic.weights()
    mode.learn_auxiliary(tensors(Batch(mode.rows.tokens[0])))
    after = mode.critic.weights()
    assert not any(same_bits(first[name], between[name]) for name in first)
    assert not any(same_bits(between[name], after[name]) for name in first)


def test_the_auxiliary_phase_learns_returns_on_the_scale_of_the_values() -> None:
    mode = policy(normalise_values=True, auxiliary_epochs=1).learn_mode(0)
    batch = rows(32)
    learn_from(mode, batch.replace(reward=100 * batch["reward"] + 300))
    returns = torch.from_numpy(mode.rows.tokens[0]["returns"].copy())
    mean, std = returns.mean(), returns.std(correction=0)
    with torch.no_grad():
        found = mode.net(tensors(batch).obs)["auxiliary"]
    expected = 0.5 * (found - (returns - mean) / std).square().mean()
    losses = mode.learn_auxiliary(tensors(Batch(mode.rows.tokens[0])))
    assert float(losses["auxiliary_loss"].detach()) == pytest.approx(float(expected), rel=1e-3)


def test_rows_are_state_that_does_not_change_afterwards() -> None:
    kept = StoredRows()
    column = np.arange(3.0)
    kept.add({"obs": column}, 3)
    column[:] = 7
    state = kept.state_dict()
    kept.add({"obs": column}, 3)
    other = StoredRows()
    other.load_state_dict(state)
    assert other.take()["obs"].tolist() == [0, 1, 2]
    assert kept.take()["obs"].tolist() == [0, 1, 2, 7, 7, 7]
    assert kept.tokens == []


def test_a_model_that_shares_no_layer_is_refused() -> None:
    with pytest.raises(UnsoundError, match="no layer is shared with the values"):
        policy(model=Mlp(hidden=[8], shared=False))
    with pytest.raises(UnsoundError, match="ppg learns from single steps"):
        policy(unroll_steps=8)


def test_one_clip_and_one_optimiser_belong_to_each_network() -> None:
    mode = policy(max_grad_norm=1e-9).learn_mode(0)
    learn_from(mode, rows(32))
    assert float(torch.linalg.vector_norm(mode.critic.grads)) <= 1e-9
    assert float(torch.linalg.vector_norm(mode.net.grads)) <= 1e-9
