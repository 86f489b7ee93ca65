"""The targets of algorithms that learn from data: each correction is in them, and each test fails without it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes import losses
from tests.nodes.policies.test_corrections import (
    generator_of,
    learned,
    learner,
    q_of,
    tensors,
    unit,
)
from tests.nodes.policies.test_every_algorithm import OBS, REAL, make, obs_rows, random_batch

COLUMNS = ("obs", "next_obs", "action", "reward", "discount")


def normal_logp(heads: dict[str, Tensor], action: Tensor) -> Tensor:
    normal = torch.distributions.Normal(heads["mean"].tanh(), heads["log_std"].exp())
    found: Tensor = normal.log_prob(action).sum(1)
    return found


def test_the_actor_of_td3bc_stays_near_the_data() -> None:
    policy, mode, batch = learner("td3bc", alpha=2.0, critic_lr=1e-9)
    obs, action = tensors(batch, "obs", "action")
    with torch.no_grad():
        chosen = mode.actor(obs)["action"].tanh()
        q = q_of(mode.critic, obs, chosen)[:, 0]
    weight = 2.0 / q.abs().mean()
    expected = -weight * q.mean() + ((chosen - unit(policy, action)) ** 2).mean()
    metrics, _ = learned(policy, mode, batch)
    assert metrics["actor_loss"] == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("real", [False, True])
def test_iql_asks_for_the_datas_own_actions_only(real: bool) -> None:
    params = {"action": REAL} if real else {}
    policy, mode, batch = learner("iql", expectile=0.8, inverse_temperature=2.0, **params)
    obs, next_obs, action, reward, discount = tensors(batch, *COLUMNS)
    action = unit(policy, action) if real else action
    with torch.no_grad():
        v, v_next = mode.value(obs)["v"], mode.value(next_obs)["v"]
        advantage = q_of(mode.critic_target, obs, action).amin(1) - v
        heads = mode.actor(obs)
        logp = (
            normal_logp(heads, action)
            if real
            else losses.chosen(heads["logits"].log_softmax(1), action)
        )
        target = reward + discount * v_next
        error = target.unsqueeze(1) - q_of(mode.critic, obs, action)
    metrics, priorities = learned(policy, mode, batch)
    weight = torch.where(advantage < 0, 0.2, 0.8)
    assert metrics["value_loss"] == pytest.approx((weight * advantage**2).mean().item(), rel=1e-4)
    expected = -((2.0 * advantage).exp().clamp(max=100) * logp).mean().item()
    assert metrics["actor_loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["critic_loss"] == pytest.approx((error**2).sum(1).mean().item(), rel=1e-4)
    np.testing.assert_allclose(priorities, error.mean(1).abs(), rtol=1e-4, atol=1e-5)


def test_the_weights_of_iql_are_limited() -> None:
    policy, mode, batch = learner("iql", inverse_temperature=1000.0)
    metrics, _ = learned(policy, mode, batch)
    assert metrics["actor_weight"] <= 100


@pytest.mark.parametrize("real", [False, True])
def test_awac_weighs_actions_by_their_gain_over_the_policys_own(real: bool) -> None:
    params = {"action": REAL} if real else {}
    policy, mode, batch = learner("awac", temperature=0.5, critic_lr=1e-9, **params)
    mode.critic_target.params.mul_(1.1)
    obs, next_obs, action, reward, discount = tensors(batch, *COLUMNS)
    action = unit(policy, action) if real else action
    generator = generator_of(mode)

    def draw(heads: dict[str, Tensor]) -> Tensor:
        if real:
            noise = torch.randn(heads["mean"].shape, generator=generator)
            return (heads["mean"].tanh() + heads["log_std"].exp() * noise).clamp(-1, 1)
        p = heads["logits"].softmax(1)
        u = torch.rand((len(p), 1), generator=generator)
        return (u >= p.cumsum(1)[:, :-1]).sum(1)

    with torch.no_grad():
        q_next = q_of(mode.critic_target, next_obs, draw(mode.actor(next_obs))).amin(1)
        target = reward + discount * q_next
        q = q_of(mode.critic, obs, action)
        heads = mode.actor(obs)
        advantage = q.amin(1) - q_of(mode.critic, obs, draw(heads)).amin(1)
        logp = (
            normal_logp(heads, action)
            if real
            else losses.chosen(heads["logits"].log_softmax(1), action)
        )
    metrics, _ = learned(policy, mode, batch)
    assert metrics["critic_loss"] == pytest.approx(
        ((target.unsqueeze(1) - q) ** 2).sum(1).mean().item(), rel=1e-4
    )
    total = sum(math.exp(a / 0.5) for a in advantage.tolist())
    weight = torch.tensor([len(batch) * math.exp(a / 0.5) / total for a in advantage.tolist()])
    assert metrics["actor_loss"] == pytest.approx(-(weight * logp).mean().item(), rel=1e-3)


def test_awac_refuses_several_choices() -> None:
    with pytest.raises(UnsoundError, match="awac chooses one of n actions"):
        make("awac", action=Column("int64", (2,), low=0, high=(2, 3)))


def test_cql_subtracts_the_values_of_the_data_from_those_of_all_actions() -> None:
    policy, mode, batch = learner("cql", conservatism=3.0, samples=4, alpha=0.7, learn_alpha=False)
    obs, next_obs, action, reward, discount = tensors(batch, *COLUMNS)
    generator, rows = generator_of(mode), len(batch)

    def draw(seen: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
        heads = mode.actor(seen)
        noise = torch.randn((*shape, 2), generator=generator)
        return losses.squashed_gaussian(heads["mean"], heads["log_std"], noise)

    def repeat(x: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(-1, 4, -1).contiguous()

    with torch.no_grad():
        a_next, logp = draw(next_obs, rows)
        q_next = q_of(mode.critic_target, next_obs, a_next).amin(1)
        target = reward + discount * (q_next - 0.7 * logp)
        q = q_of(mode.critic, obs, unit(policy, action))
        uniform = 2 * torch.rand((rows, 4, 2), generator=generator) - 1
        here, after = draw(repeat(obs), rows, 4), draw(repeat(next_obs), rows, 4)
        expected = 0.0
        for row in range(rows):
            for critic in range(2):
                total = 0.0
                for k in range(4):
                    for sample, density in (
                        (uniform[row, k], math.log(0.25)),
                        (here[0][row, k], float(here[1][row, k])),
                        (after[0][row, k], float(after[1][row, k])),
                    ):
                        value = q_of(mode.critic, obs[row : row + 1], sample.unsqueeze(0))[
                            0, critic
                        ]
                        total += math.exp(float(value) - density)
                gap = math.log(total / 12) - float(q[row, critic])
                squared = float(q[row, critic] - target[row]) ** 2
                expected += (squared + 3.0 * gap) / rows
    metrics, _ = learned(policy, mode, batch)
    assert metrics["critic_loss"] == pytest.approx(expected, rel=1e-4)


def test_discrete_cql_rates_actions_beyond_the_data_low() -> None:
    policy, mode, batch = learner("discrete_cql", conservatism=2.0, loss="mse")
    obs, next_obs, action, reward, discount = tensors(batch, *COLUMNS)
    with torch.no_grad():
        q = mode.q(obs)["q"]
        best = mode.q(next_obs)["q"].argmax(1)
        target = reward + discount * losses.chosen(mode.q_target(next_obs)["q"], best)
        q_t = losses.chosen(q, action)
        gap = (q.exp().sum(1).log() - q_t).mean()
        expected = ((target - q_t) ** 2).mean() + 2 * gap
    metrics, _ = learned(policy, mode, batch)
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert metrics["gap"] == pytest.approx(gap.item(), rel=1e-4)


def test_dqfd_adds_the_margin_on_demonstrations_only() -> None:
    policy, mode, batch = learner("dqfd", margin=0.5, margin_weight=2.0, loss="mse")
    is_demo = np.arange(len(batch)) % 3 == 0
    batch = batch.replace(is_demo=is_demo)
    obs, next_obs, action, reward, discount = tensors(batch, *COLUMNS)
    with torch.no_grad():
        q = mode.q(obs)["q"]
        best = mode.q(next_obs)["q"].argmax(1)
        target = reward + discount * losses.chosen(mode.q_target(next_obs)["q"], best)
        q_t = losses.chosen(q, action)
    margins = 0.0
    for row in np.flatnonzero(is_demo):
        raised = [float(q[row, a]) + 0.5 * (a != int(action[row])) for a in range(4)]
        margins += (max(raised) - float(q_t[row])) / len(batch)
    metrics, _ = learned(policy, mode, batch)
    assert metrics["margin_loss"] == pytest.approx(margins, rel=1e-4)
    assert metrics["loss"] == pytest.approx(
        ((target - q_t) ** 2).mean().item() + 2 * margins, rel=1e-4
    )


@pytest.mark.parametrize("name", ["iql", "awac"])
def test_real_valued_actions_are_acted_within_their_bounds(name: str) -> None:
    policy = make(name, action=REAL)
    mode = policy.learn_mode(0)
    mode.forward(random_batch(policy), policy.command(Count()))
    state = State(mode.weights(), policy.command(Count()))
    drawn = policy.collect_mode(0)
    drawn.load(state)
    same = np.repeat(obs_rows(OBS, 1), 300, 0)
    action = drawn.forward(same)["action"]
    assert (action >= np.float32(REAL.low)).all()
    assert (action <= np.float32(REAL.high)).all()
    assert action.std(0).min() > 0.2  # they explore
    greedy = policy.eval_mode(0)
    greedy.load(state)
    assert greedy.forward(same)["action"].std(0).max() < 1e-3
