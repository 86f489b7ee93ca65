"""MAPPO against its loss written out, with agents that are absent, and on games that its critic is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Array, Batch
from flowrl.nodes.policies.mappo import Mappo
from tests.nodes.learn_modes import learn_from, tensors
from tests.nodes.policies.agent_episodes import AGENTS, ALWAYS, DISCRETE, GAMMA, LIVES, OBS, episode
from tests.nodes.test_returns import slow_gae
from tests.references import multi_agent as slow


def mappo(**params: Any) -> Mappo:
    return Mappo(obs=OBS, action=DISCRETE, **params)


def values(mode: Any, state: Array) -> Array:
    with torch.no_grad():
        found: Array = mode.critic(state=torch.from_numpy(state))["value"].numpy()
    return found


def loss_written_out(policy: Mappo, mode: Any, batch: Batch) -> tuple[Any, Any]:
    """The losses of actor and critic in the first step over the whole batch, agent by agent."""
    c, acts = policy.config, batch["obs/alive"]
    v, v_tp1 = (values(mode, batch[f"{when}/state"])[:, 0] for when in ("obs", "next_obs"))
    cut = batch["last"]
    advantage = slow_gae(batch["reward"], batch["discount"], v, v_tp1, cut, c.gae_lambda)
    returns = advantage + v
    counted = np.concatenate([np.repeat(a, n) for a, n in zip(advantage, acts.sum(1), strict=True)])
    advantage = (advantage - counted.mean()) / counted.std()
    logits = mode.actor(mode.own(tensors(batch).obs))["logits"]
    policy_loss = torch.zeros(())
    for row in range(len(batch)):
        for agent in range(AGENTS):
            if not acts[row, agent]:
                continue
            p = torch.softmax(logits[row, agent], 0)
            ratio = p[batch["action"][row, agent]] / float(np.exp(batch["logp"][row, agent]))
            gain = torch.min(
                ratio * advantage[row], ratio.clamp(1 - c.clip, 1 + c.clip) * advantage[row]
            )
            policy_loss = policy_loss - gain + c.entropy_weight * (p * p.log()).sum()
    value = mode.critic(state=torch.from_numpy(batch["obs/state"]))["value"][:, 0]
    scaled = (torch.from_numpy(returns).float() - returns.mean()) / returns.std()
    return policy_loss / acts.sum(), (value - scaled).square().mean()


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_gradients_equal_those_of_the_losses_written_out(end: str) -> None:
    policy = mappo(epochs=1, max_grad_norm=None, lr=0.0, critic_lr=0.0)
    mode, reference = policy.learn_mode(3), policy.learn_mode(3)
    batch = episode(policy, LIVES, end)
    for loss in loss_written_out(policy, reference, batch):
        loss.backward()
    learn_from(mode, batch)
    for name in ("actor", "critic"):
        grads = getattr(mode, name).grads
        torch.testing.assert_close(grads, getattr(reference, name).grads, rtol=1e-3, atol=1e-5)
        assert grads.abs().max() > 0.01


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_own_rewards_end_with_the_life_of_an_agent(end: str) -> None:
    plain = {"normalise_advantages": False, "normalise_values": False}
    policy = mappo(rewards="own", gae_lambda=0.8, **plain)
    mode = policy.learn_mode(0)
    batch = episode(policy, LIVES, end)
    advantage, target, _ = (x.numpy() for x in mode.targets(tensors(batch)))
    v, v_tp1 = (values(mode, batch[f"{when}/state"]) for when in ("obs", "next_obs"))
    ends = np.where(batch["terminated"], 2, batch["last"].astype(int))
    for agent in range(AGENTS):
        expected = slow.gae_of_agent(
            batch["info/rewards"][:, agent],
            GAMMA,
            v[:, agent],
            v_tp1[:, agent],
            ends,
            0.8,
            LIVES[:, agent],
        )
        acts = LIVES[:-1, agent] == 1
        np.testing.assert_allclose(advantage[acts, agent], expected[acts], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            target[acts, agent], (expected + v[:, agent])[acts], rtol=1e-4, atol=1e-5
        )


def test_the_reward_of_the_team_goes_on_when_an_agent_has_left() -> None:
    policy = mappo(normalise_advantages=False, normalise_values=False)
    mode = policy.learn_mode(0)
    whole, lives = (
        mode.targets(tensors(episode(policy, alive)))[0].numpy() for alive in (ALWAYS, LIVES)
    )
    np.testing.assert_allclose(lives, whole)
    assert (lives == lives[:, :1]).all()


def test_own_values_are_learned_while_the_agent_acts() -> None:
    policy = mappo(rewards="own", epochs=1, normalise_values=False, max_grad_norm=None)
    one, other = policy.learn_mode(0), policy.learn_mode(0)
    batch = episode(policy, LIVES)
    rewards = batch["info/rewards"].copy()
    rewards[LIVES[:-1] == 0] += 100
    for mode, given in ((one, batch), (other, batch.replace(**{"info/rewards": rewards}))):
        learn_from(mode, given, lr=0.0, critic_lr=0.0)
    torch.testing.assert_close(one.critic.grads, other.critic.grads)
    torch.testing.assert_close(one.actor.grads, other.actor.grads)


def test_a_value_gets_no_credit_for_moving_further_than_the_clip() -> None:
    policy = mappo(value_clip=0.1)
    mode: Any = policy.learn_mode(0)
    batch = episode(policy, LIVES)
    b, rng = tensors(batch), np.random.default_rng(2)
    v = values(mode, batch["obs/state"])
    old, target = (v + rng.normal(0, 0.3, v.shape).astype(np.float32) for _ in range(2))
    b.add(old_value=torch.from_numpy(old), target=torch.from_numpy(target))
    clipped = np.clip(v, old - 0.1, old + 0.1)
    errors = np.maximum(np.square(v - target), np.square(clipped - target))
    assert errors.mean() > np.square(v - target).mean()
    mode.now.critic_lr = 0.0
    assert float(mode.descend_critic(b).detach()) == pytest.approx(errors.mean(), rel=1e-5)


def test_normalised_values_are_in_units_of_the_returns_so_far() -> None:
    policy = mappo(normalise_advantages=False)
    mode: Any = policy.learn_mode(0)
    learn_from(mode, episode(policy, ALWAYS, reward=np.linspace(5, 60, 6, dtype=np.float32)))
    mean, std = float(mode.returns.mean), float(mode.returns.std)
    assert mean > 5
    batch = episode(policy, ALWAYS, "truncated", seed=1)
    v, v_tp1 = (
        values(mode, batch[f"{when}/state"])[:, 0] * std + mean for when in ("obs", "next_obs")
    )
    found = [x[:, 0].numpy() for x in mode.targets(tensors(batch))]
    c = policy.config
    args = (batch["reward"], batch["discount"], v, v_tp1, batch["last"])
    advantage = slow_gae(*args, c.gae_lambda)
    mean, std = float(mode.returns.mean), float(mode.returns.std)  # with the new returns
    expected = (advantage, (advantage + v - mean) / std, (v - mean) / std)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_the_actor_does_not_see_the_state() -> None:
    policy = mappo()
    assert "state" not in policy.own_obs.columns
    assert policy.nets["critic"].inputs == {"state": policy.agents.state}
