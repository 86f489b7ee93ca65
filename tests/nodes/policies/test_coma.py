"""COMA against its targets and its gradient written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.facts import UnsoundError
from flowrl.core.state import State
from flowrl.nodes.exploring import RandomActions
from flowrl.nodes.policies.coma import Coma, drawn_from
from tests.nodes.learn_modes import learn_from, tensors
from tests.nodes.policies.agent_episodes import (
    ACTIONS,
    AGENTS,
    ALWAYS,
    DISCRETE,
    GAMMA,
    LIVES,
    OBS,
    episode,
)
from tests.references import multi_agent as slow


def coma(**params: Any) -> Coma:
    return Coma(obs=OBS, action=DISCRETE, epsilon=0.3, **params)


def learn_mode(policy: Coma) -> Any:
    """A learn mode whose target critic differs from the one that learns."""
    mode: Any = policy.learn_mode(3)
    mode.critic_target.params.mul_(1.5)
    mode.now.epsilon = 0.3
    return mode


def q_of(mode: Any, b: Any, network: str = "critic") -> Any:
    with torch.no_grad():
        return mode.q(getattr(mode, network), b.obs, mode.one_hot(b.action, b.obs))


def test_the_targets_are_td_lambda_returns_of_what_agents_did() -> None:
    policy = coma(td_lambda=0.7)
    mode = learn_mode(policy)
    batch = episode(policy, ALWAYS)
    b = tensors(batch)
    found = mode.targets(b, mode.one_hot(b.action, b.obs))
    q = q_of(mode, b, "critic_target").gather(-1, b.action.unsqueeze(-1)).squeeze(-1).numpy()
    for agent in range(AGENTS):
        expected = slow.td_lambda_of_agent(batch["reward"], GAMMA, q[:, agent], 5, 0.7)
        np.testing.assert_allclose(found[:, agent], expected, rtol=1e-4, atol=1e-5)


def test_a_truncated_episode_goes_on_with_actions_of_the_policy() -> None:
    policy = coma(td_lambda=0.7)
    mode = learn_mode(policy)
    b = tensors(episode(policy, ALWAYS, "truncated"))
    mode.uniform = lambda *shape: torch.full(shape, 0.99)  # draws the last action
    found = mode.targets(b, mode.one_hot(b.action, b.obs))[-1]
    last = {leaf: x[-1:] for leaf, x in b.next_obs.items()}
    actions = torch.full((1, AGENTS), ACTIONS - 1)
    with torch.no_grad():
        q = mode.q(mode.critic_target, last, mode.one_hot(actions, last))[0, :, ACTIONS - 1]
    torch.testing.assert_close(found, b.reward[-1] + GAMMA * q)


def test_the_critic_descends_its_squared_error_where_agents_act() -> None:
    policy = coma(critic_epochs=1, max_grad_norm=None)
    mode, reference = learn_mode(policy), learn_mode(policy)
    for one in (mode, reference):
        one.uniform = lambda *shape: torch.full(shape, 0.5)
    batch = episode(policy, LIVES, "truncated")
    b = tensors(batch)
    actions = reference.one_hot(b.action, b.obs)
    target = reference.targets(b, actions)
    q = reference.q(reference.critic, b.obs, actions)
    loss, acts = torch.zeros(()), batch["obs/alive"]
    for row in range(len(batch)):
        for agent in np.flatnonzero(acts[row]):
            loss = loss + (q[row, agent, b.action[row, agent]] - target[row, agent]).square()
    loss = loss / acts.sum()
    loss.backward()
    found = learn_from(mode, batch, lr=0.0, critic_lr=0.0).metrics
    assert float(found["critic_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    torch.testing.assert_close(mode.critic.grads, reference.critic.grads, rtol=1e-3, atol=1e-6)


def test_the_gradient_enumerates_what_one_agent_could_have_done() -> None:
    """Each alternative is asked for by itself, with the joint action of the others."""
    policy = coma(max_grad_norm=None, entropy_weight=0.1)
    mode, reference = learn_mode(policy), learn_mode(policy)
    batch = episode(policy, LIVES)
    b = tensors(batch)
    q = q_of(reference, b)
    p = reference.probabilities(b.obs)
    loss = torch.zeros(())
    for row in range(len(batch)):
        for agent in range(AGENTS):
            if not batch["obs/alive"][row, agent]:
                continue
            own = p[row, agent]
            baseline = sum(own[a].item() * float(q[row, agent, a]) for a in range(ACTIONS))
            taken = batch["action"][row, agent]
            advantage = float(q[row, agent, taken]) - baseline
            entropy = -(own * own.log()).sum()
            loss = loss - own[taken].log() * advantage - 0.1 * entropy
    (loss / batch["obs/alive"].sum()).backward()
    learn_from(mode, batch, lr=0.0, critic_lr=0.0)
    torch.testing.assert_close(mode.actor.grads, reference.actor.grads, rtol=1e-3, atol=1e-6)
    assert mode.actor.grads.abs().max() > 1e-3


def test_the_critic_of_an_agent_sees_what_others_do_and_not_what_it_does() -> None:
    policy = coma()
    mode = learn_mode(policy)
    b = tensors(episode(policy, ALWAYS))
    before = q_of(mode, b)
    b.action = b.action.clone()
    b.action[:, 1] = (b.action[:, 1] + 1) % ACTIONS
    after = q_of(mode, b)
    torch.testing.assert_close(after[:, 1], before[:, 1])
    assert (after[:, [0, 2]] - before[:, [0, 2]]).abs().amin() > 0


def test_collecting_draws_with_the_probabilities_that_are_learned_from() -> None:
    p = torch.tensor([[0.2, 0.5, 0.3]])
    drawn = [drawn_from(p, torch.tensor([u])).item() for u in (0.0, 0.19, 0.21, 0.69, 0.71, 0.999)]
    assert drawn == [0, 0, 1, 1, 2, 2]
    policy = coma()
    mode, learner = policy.collect_mode(0), learn_mode(policy)
    learner.actor.params.mul_(3)  # far from uniform
    mode.load(State(learner.weights(), {"epsilon": 0.3}))
    obs = np.zeros(6000, OBS.dtype)
    obs["agents"] = np.random.default_rng(1).standard_normal((3, 4))
    obs["alive"] = 1
    leaves = {n: torch.from_numpy(obs[n][:1].copy()) for n in OBS.columns}
    expected = learner.probabilities(leaves)[0].detach().numpy()
    action = mode.forward(obs)["action"]
    for agent in range(AGENTS):
        share = np.bincount(action[:, agent], minlength=ACTIONS) / len(action)
        np.testing.assert_allclose(share, expected[agent], atol=0.03)


def test_exploring_steps_are_refused() -> None:
    with pytest.raises(UnsoundError, match="`epsilon` is its exploration"):
        coma(explore=[RandomActions(share=0.1)])
