"""HAPPO: agents are improved in turn, and each counts what those before it have changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from flowrl.core.state import Count, State
from flowrl.nodes.policies.happo import Happo
from tests.nodes.learn_modes import learn_from, tensors
from tests.nodes.policies.agent_episodes import AGENTS, ALWAYS, DISCRETE, LIVES, OBS, episode
from tests.references import multi_agent as slow


def happo(**params: Any) -> Happo:
    return Happo(obs=OBS, action=DISCRETE, **params)


def ratios(mode: Any, batch: Any) -> Any:
    """pi_new / pi_old of each row and agent, from the definition; 1 where the agent is absent."""
    b = tensors(batch)
    found = np.ones((len(batch), AGENTS))
    for agent in range(AGENTS):
        own = {leaf: x[:, agent] for leaf, x in mode.own(b.obs).items()}
        with torch.no_grad():
            p = torch.softmax(getattr(mode, f"actor_{agent}")(own)["logits"], -1).numpy()
        for row in range(len(batch)):
            if batch["obs/alive"][row, agent]:
                taken = p[row, batch["action"][row, agent]]
                found[row, agent] = taken / np.exp(batch["logp"][row, agent])
    return found


def test_each_agent_learns_with_the_ratios_of_those_before_it() -> None:
    policy = happo(epochs=2, lr=0.01)
    mode: Any = policy.learn_mode(0)
    batch = episode(policy, LIVES)
    seen: list[tuple[int, Any]] = []
    descend = mode.descend_agent

    def watched(agent: int, b: Any) -> Any:
        order = [
            int(np.abs(batch["obs/state"] - s.numpy()).sum(1).argmin()) for s in b.obs["state"]
        ]
        factor = np.empty(len(batch))
        factor[order] = b.factor.numpy()
        seen.append((agent, factor))
        return descend(agent, b)

    mode.descend_agent = watched
    learn_from(mode, batch)
    after = ratios(mode, batch)
    order = [agent for agent, _ in seen[::2]]
    assert sorted(order) == list(range(AGENTS))
    assert [agent for agent, _ in seen[1::2]] == order
    for place, agent in enumerate(order):
        expected = slow.product_of_ratios(after, order[:place])
        for when, factor in seen:
            if when == agent:
                np.testing.assert_allclose(factor, expected, rtol=1e-4)
    assert np.abs(slow.product_of_ratios(after, order[:2]) - 1).max() > 0.05


def test_the_order_of_agents_changes() -> None:
    policy = happo(epochs=1)
    mode: Any = policy.learn_mode(0)
    orders: list[int] = []
    descend = mode.descend_agent
    mode.descend_agent = lambda agent, b: (orders.append(agent), descend(agent, b))[1]
    for _ in range(6):
        learn_from(mode, episode(policy, ALWAYS))
    assert len({tuple(orders[k : k + AGENTS]) for k in range(0, len(orders), AGENTS)}) > 2


def test_an_agent_learns_and_acts_with_a_network_of_its_own() -> None:
    policy = happo(epochs=1)
    mode: Any = policy.learn_mode(0)
    batch = episode(policy, ALWAYS)
    before = [getattr(mode, f"actor_{k}").params.clone() for k in range(AGENTS)]
    b = tensors(batch)
    ones = torch.ones(len(batch))
    mode.now = type("Now", (), {"clip": 0.2, "entropy_weight": 0.0, "lr": 0.1})()
    b.add(advantage=torch.randn(len(batch), AGENTS), factor=ones)
    mode.descend_agent(1, b)
    changed = [
        not torch.equal(getattr(mode, f"actor_{k}").params, before[k]) for k in range(AGENTS)
    ]
    assert changed == [False, True, False]
    obs = np.zeros(50, OBS.dtype)
    obs["agents"] = np.random.default_rng(0).standard_normal((50, 1, 4))
    acting = policy.eval_mode(0)
    acting.load(State(mode.weights(), policy.command(Count())))
    action = acting.forward(obs)["action"]
    for agent in range(AGENTS):
        leaves = {"agents": torch.from_numpy(np.ascontiguousarray(obs["agents"][:, agent]))}
        expected = getattr(mode, f"actor_{agent}")(leaves)["logits"].argmax(-1)
        np.testing.assert_array_equal(action[:, agent], expected)
    assert (action[:, 0] != action[:, 1]).any()


def test_collecting_continues_from_its_state() -> None:
    policy = happo()
    weights = State(policy.learn_mode(0).weights(), policy.command(Count()))
    obs = np.ones(20, OBS.dtype)
    one, other = policy.collect_mode(0), policy.collect_mode(5)
    for mode in (one, other):
        mode.load(weights)
    one.forward(obs)
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(one.forward(obs)["action"], other.forward(obs)["action"])


def test_the_gradient_of_an_agent_is_that_of_its_loss_times_the_factor() -> None:
    policy = happo(max_grad_norm=None)
    mode: Any = policy.learn_mode(0)
    reference: Any = policy.learn_mode(0)
    batch = episode(policy, LIVES)
    rng = np.random.default_rng(0)
    factor = torch.from_numpy(rng.uniform(0.3, 3, len(batch)).astype(np.float32))
    advantage = torch.from_numpy(rng.standard_normal((len(batch), AGENTS)).astype(np.float32))
    b = tensors(batch)
    own = {leaf: x[:, 1] for leaf, x in reference.own(b.obs).items()}
    p = torch.softmax(reference.actor_1(own)["logits"], -1)
    loss, acts = torch.zeros(()), batch["obs/alive"][:, 1]
    for row in np.flatnonzero(acts):
        ratio = p[row, batch["action"][row, 1]] / float(np.exp(batch["logp"][row, 1]))
        weight = factor[row] * advantage[row, 1]
        loss = loss - torch.min(ratio * weight, ratio.clamp(0.8, 1.2) * weight)
        loss = loss + 0.01 * (p[row] * p[row].log()).sum()
    (loss / acts.sum()).backward()
    mode.now = type("Now", (), {"clip": 0.2, "entropy_weight": 0.01, "lr": 0.0})()
    b.add(advantage=advantage, factor=factor)
    mode.descend_agent(1, b)
    grads = mode.actor_1.grads
    torch.testing.assert_close(grads, reference.actor_1.grads, rtol=1e-3, atol=1e-6)
    assert grads.abs().max() > 1e-3
