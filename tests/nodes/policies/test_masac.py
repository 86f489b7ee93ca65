"""MASAC against its targets and the gradient of its actor written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.policies.masac import Masac
from tests.nodes.learn_modes import learn_from
from tests.nodes.policies.agent_episodes import AGENTS, GAMMA, LIVES, OBS, REAL, episode

each_reward = pytest.mark.parametrize("rewards", ["team", "own"])


def masac(**params: Any) -> Masac:
    return Masac(obs=OBS, action=REAL, **params)


def batch_of(mode: Any, batch: Any) -> Any:
    b = LearnBatch(batch, {}, mode.box)
    b.add(actions=mode.joint(b.unit_action, b.obs))
    return b


def q_min(mode: Any, network: Any, state: Any, joint: Any) -> Any:
    q = network(state=state.reshape(1, -1), actions=joint.reshape(1, -1))["value"][0]
    return q.min(0).values


@each_reward
def test_the_entropy_of_agents_that_act_counts_as_a_reward(rewards: str) -> None:
    policy = masac(rewards=rewards)
    mode: Any = policy.learn_mode(0)
    mode.critic_target.params.mul_(1.5)
    batch = episode(policy, LIVES)
    b = batch_of(mode, batch)
    action, logp = mode.draw(b.next_obs)
    mode.draw = lambda obs: (action.detach(), logp.detach())
    found = mode.target_values(b, 0.3).numpy()
    for row in range(len(batch)):
        acts = batch["next_obs/alive"][row]
        joint = action[row].detach() * torch.from_numpy(acts)[:, None]
        with torch.no_grad():
            q = q_min(mode, mode.critic_target, b.next_obs["state"][row], joint).numpy()
        own = [logp[row, k].item() if acts[k] else 0.0 for k in range(AGENTS)]
        go_on = batch["discount"][row] > 0
        if rewards == "team":
            expected = [batch["reward"][row] + go_on * GAMMA * (q[0] - 0.3 * sum(own))]
        else:
            expected = [
                batch["info/rewards"][row, k] + go_on * acts[k] * GAMMA * (q[k] - 0.3 * own[k])
                for k in range(AGENTS)
            ]
        np.testing.assert_allclose(found[row], expected, rtol=1e-4)
    assert np.abs(0.3 * logp.detach().numpy()).max() > 0.1


def test_likelihoods_are_those_of_squashed_gaussians_of_each_agent() -> None:
    policy = masac()
    mode: Any = policy.learn_mode(0)
    b = batch_of(mode, episode(policy, LIVES))
    action, logp = mode.draw(b.obs)
    heads = mode.actor(mode.own(b.obs))
    normal = torch.distributions.Normal(heads["mean"], heads["log_std"].clamp(-5, 2).exp())
    squashed = torch.distributions.TransformedDistribution(
        normal, [torch.distributions.TanhTransform()]
    )
    expected = squashed.log_prob(action).sum(-1) * b.obs["alive"]
    torch.testing.assert_close(logp, expected, rtol=1e-3, atol=1e-3)


@each_reward
def test_each_agent_climbs_its_soft_value_by_its_own_action(rewards: str) -> None:
    policy = masac(rewards=rewards, max_grad_norm=None, alpha=0.3)
    mode, reference = (policy.learn_mode(3) for _ in range(2))
    batch = episode(policy, LIVES)
    b = batch_of(reference, batch)
    action, logp = reference.draw(b.obs)
    loss, acts = torch.zeros(()), batch["obs/alive"]
    for row in range(len(batch)):
        for agent in range(AGENTS):
            if not acts[row, agent]:
                continue
            joint = action[row].detach() * b.obs["alive"][row].unsqueeze(-1)
            joint[agent] = action[row, agent]
            q = q_min(reference, reference.critic, b.obs["state"][row], joint)
            loss = loss + 0.3 * logp[row, agent] - q[agent if rewards == "own" else 0]
    (loss / acts.sum()).backward(inputs=reference.actor.parameters)
    mode.now.lr = 0.0
    mode.learn_actor(batch_of(mode, batch), 0.3)
    torch.testing.assert_close(mode.actor.grads, reference.actor.grads, rtol=1e-3, atol=1e-6)
    assert mode.actor.grads.abs().max() > 1e-3


@pytest.mark.parametrize(("goal", "rises"), [(-50.0, False), (50.0, True)])
def test_the_temperature_rises_while_the_entropy_is_below_its_goal(
    goal: float, rises: bool
) -> None:
    policy = masac(entropy_goal=goal)
    mode: Any = policy.learn_mode(0)
    before = mode.log_alpha.value.item()
    learn_from(mode, episode(policy, LIVES))
    assert (mode.log_alpha.value.item() > before) == rises
    constant: Any = masac(learn_alpha=False).learn_mode(0)
    learn_from(constant, episode(policy, LIVES))
    assert constant.log_alpha.value.item() == before
