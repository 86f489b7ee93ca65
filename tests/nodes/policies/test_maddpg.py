"""MADDPG against its targets and the gradient of its actor written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.policies.maddpg import Maddpg
from tests.nodes.learn_modes import learn_from
from tests.nodes.policies.agent_episodes import AGENTS, DISCRETE, GAMMA, LIVES, OBS, REAL, episode


def maddpg(action: Column = REAL, **params: Any) -> Maddpg:
    return Maddpg(obs=OBS, action=action, **params)


def batch_of(mode: Any, batch: Any) -> Any:
    from flowrl.nodes.network_learn_mode import LearnBatch

    b = LearnBatch(batch, {}, mode.box)
    b.add(actions=mode.joint(mode.policy.choice.taken(b), b.obs))
    return b


@pytest.mark.parametrize("rewards", ["team", "own"])
def test_the_targets_are_those_of_what_the_target_actors_do(rewards: str) -> None:
    policy = maddpg(rewards=rewards)
    mode: Any = policy.learn_mode(0)
    mode.actor_target.params.mul_(2)
    mode.critic_target.params.mul_(1.5)  # targets differ from what they follow
    batch = episode(policy, LIVES)
    b = batch_of(mode, batch)
    found = mode.target_values(b).numpy()
    with torch.no_grad():
        action = mode.actor_target(mode.own(b.next_obs))["action"].tanh()
        for row in range(len(batch)):
            joint = action[row].clone()
            for agent in range(AGENTS):
                if not batch["next_obs/alive"][row, agent]:
                    joint[agent] = 0
            q = mode.critic_target(
                state=torch.from_numpy(batch["next_obs/state"][row : row + 1]),
                actions=joint.reshape(1, -1),
            )["value"][0].numpy()
            over = batch["discount"][row] == 0
            if rewards == "team":
                expected = [batch["reward"][row] + (0 if over else GAMMA * q[0])]
            else:
                lives = batch["next_obs/alive"][row] == 1
                expected = batch["info/rewards"][row] + np.where(lives & ~over, GAMMA * q, 0)
            np.testing.assert_allclose(found[row], expected, rtol=1e-5)


@pytest.mark.parametrize("rewards", ["team", "own"])
@pytest.mark.parametrize("action", [REAL, DISCRETE], ids=["real", "discrete"])
def test_the_actor_climbs_where_each_agent_alone_acts_anew(rewards: str, action: Column) -> None:
    policy = maddpg(action, rewards=rewards, max_grad_norm=None, regularisation=0.01)
    mode, reference = (policy.learn_mode(3) for _ in range(2))
    batch = episode(policy, LIVES)
    b = batch_of(reference, batch)
    own, squares = reference.actions_of(reference.actor, b.obs)
    loss, acts = torch.zeros(()), batch["obs/alive"]
    for row in range(len(batch)):
        for agent in range(AGENTS):
            if not acts[row, agent]:
                continue
            joint = b.actions[row].reshape(AGENTS, -1).clone()
            joint[agent] = own[row, agent]
            state = torch.from_numpy(batch["obs/state"][row : row + 1])
            q = reference.critic(state=state, actions=joint.reshape(1, -1))["value"][0]
            loss = loss - q[agent if rewards == "own" else 0]
            loss = loss + 0.01 * squares[row, agent]
    (loss / acts.sum()).backward(inputs=reference.actor.parameters)
    mode.now.lr = 0.0
    b = batch_of(mode, batch)
    mode.learn_actor(b, mode.policy.choice.taken(b))
    torch.testing.assert_close(mode.actor.grads, reference.actor.grads, rtol=1e-3, atol=1e-7)
    assert mode.actor.grads.abs().max() > 1e-5


def test_the_critic_descends_its_squared_error_where_agents_act() -> None:
    policy = maddpg(rewards="own", max_grad_norm=None)
    mode: Any = policy.learn_mode(0)
    batch = episode(policy, LIVES)
    b = batch_of(mode, batch)
    target = mode.target_values(b)
    q = mode.critic(state=b.obs["state"], actions=b.actions)["value"]
    acts = batch["obs/alive"]
    distance = ((target - q).abs().detach().numpy() * acts).mean(1)
    pairs = [(r, a) for r in range(len(batch)) for a in range(AGENTS) if acts[r, a]]
    loss: Any = sum((q[r, a] - target[r, a]).square() for r, a in pairs) / len(pairs)
    found = learn_from(mode, batch, lr=0.0, critic_lr=0.0)
    assert float(found.metrics["critic_loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert found.priorities == pytest.approx(distance, rel=1e-4)


def test_discrete_target_actions_are_one_hot() -> None:
    policy = maddpg(DISCRETE)
    mode: Any = policy.learn_mode(0)
    b = batch_of(mode, episode(policy, LIVES))
    action, _ = mode.actions_of(mode.actor_target, b.obs)
    assert set(action.detach().round(decimals=5).unique().tolist()) == {0, 1}
    assert action.sum(-1).detach().numpy() == pytest.approx(1)


def test_several_choices_of_one_agent_are_refused() -> None:
    with pytest.raises(UnsoundError, match="real-valued actions or one of n"):
        maddpg(Column("int64", (AGENTS, 2), low=0.0, high=3.0))


@pytest.mark.parametrize(
    ("action", "name", "why"),
    [
        (REAL, "temperature", "real-valued actions have a gradient without it"),
        (DISCRETE, "noise", "discrete actions are drawn from the actor's distribution"),
    ],
)
def test_a_setting_for_actions_of_the_other_kind_is_refused(
    action: Column, name: str, why: str
) -> None:
    with pytest.raises(UnsoundError, match=f"`{name}` has no effect: {why}; leave it out"):
        maddpg(action, **{name: 0.5})
