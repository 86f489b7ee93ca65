"""ATOC against slow, plain definitions, and in a game that needs communication."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Array, Column
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes.communication import choose_groups, lone_groups
from flowrl.nodes.models.channel import INTEGRATED
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.model import Model
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.policies.atoc import Atoc
from tests.nodes.learn_modes import learn_from
from tests.nodes.policies.agent_episodes import (
    AGENTS,
    DISCRETE,
    FEATURES,
    GAMMA,
    LIVES,
    OBS,
    REAL,
    episode,
)
from tests.references import communication as slow

RNG = np.random.default_rng(0)
SIZE = 6  # numbers of a thought
each_action = pytest.mark.parametrize("action", [REAL, DISCRETE], ids=["real", "discrete"])
each_reward = pytest.mark.parametrize("rewards", ["team", "own"])


def atoc(action: Column = REAL, **params: Any) -> Atoc:
    models = {name: Mlp(hidden=[8]) for name in ("actor", "critic")}
    small = {"thought_size": SIZE, "attention_hidden": [8], "action_hidden": [8]}
    return Atoc(obs=OBS, action=action, **{**models, **small, **params})


def mode_of(policy: Atoc, seed: int = 0) -> Any:
    """A learn mode whose actor says something, and whose targets differ from what they follow."""
    mode: Any = policy.learn_mode(seed)
    with torch.no_grad():
        mode.actor.module.get_submodule(policy.choice.head).out.weight.mul_(60)
        mode.thought.params.mul_(1.5)
    for name in policy.nets:
        target = getattr(mode, f"{name}_target")
        target.move_towards(getattr(mode, name))
        target.params.mul_(1.2)
    mode.now = type("Now", (), policy.command(Count()))
    return mode


def batch_of(policy: Atoc, seed: int = 0) -> LearnBatch:
    b = LearnBatch(episode(policy, LIVES, seed=seed), {}, policy.box)
    b.add(taken=policy.choice.taken(b))
    return b


class Team:
    """What one team thinks and says, by the networks of a mode and plain definitions."""

    def __init__(self, mode: Any, obs: Any, row: int, suffix: str = "") -> None:
        self.policy, self.mode = mode.policy, mode
        self.networks = {n: getattr(mode, n + suffix) for n in mode.acting_networks()}
        self.own = {leaf: x[row] for leaf, x in mode.own(obs).items()}
        self.alive = obs["alive"][row].numpy() != 0
        self.thoughts = self.networks["thought"](self.own)["thought"].tanh()
        self.wants = (self.networks["attention"](self.thoughts)["wants"] > 0).tolist()
        places = self.thoughts.detach().double().numpy()
        if self.policy.config.position:
            [[begin, end]] = self.policy.config.position
            places = obs["agents"][row, :, begin:end].double().numpy()
        self.distance = np.array([[np.sum((a - b) ** 2) for b in places] for a in places])
        self.groups = slow.groups(self.distance, self.wants, self.alive, self.policy.members)

    def outputs(self, integrated: Any) -> Any:
        found = self.networks["actor"](torch.cat([self.thoughts, integrated], -1))
        return found[self.policy.choice.head]

    def integrated(self, groups: Any) -> Any:
        """The integrated thoughts, with gradients."""
        found = list(self.thoughts)
        for group in groups.values():
            joined = torch.ones(1, len(group))
            said = torch.stack([found[j] for j in group]).unsqueeze(0)
            heard = self.networks["channel"].module({"thoughts": said, "joined": joined})
            for j, thought in zip(group, heard[INTEGRATED][0], strict=True):
                found[j] = thought
        return torch.stack(found)

    def value(self, critic: Any, agent: int, action: Any) -> Any:
        own = {leaf: x[agent : agent + 1] for leaf, x in self.own.items()}
        return critic(obs=own, taken=action.unsqueeze(0))["value"][0]


# Who forms a group with whom


@pytest.mark.parametrize("members", [2, 3, 5])
def test_initiators_choose_one_after_another_by_rank_and_distance(members: int) -> None:
    teams, agents = 200, 5
    distance = RNG.integers(1, 5, (teams, agents, agents)).astype(np.float32)  # with equal ones
    wants, alive = RNG.random((2, teams, agents)) < 0.6
    found = choose_groups(distance, wants, alive, members)
    sizes = set()
    for team in range(teams):
        expected = slow.groups(distance[team], wants[team], alive[team], members)
        for i in range(agents):
            chosen = found.members[team, i][found.joined[team, i]].tolist()
            assert chosen == expected.get(i, [])
            sizes.add(len(chosen))
    assert sizes == {0, *range(2, members + 1)}


def test_each_agent_gathers_the_nearest_if_it_alone_communicates() -> None:
    distance = RNG.random((100, 4, 4)).astype(np.float32)
    alive = RNG.random((100, 4)) < 0.7
    found = lone_groups(distance, alive, 3)
    for team in range(100):
        for i in range(4):
            alone = slow.groups(distance[team], [j == i for j in range(4)], alive[team], 3)
            chosen = found.members[team, i][found.joined[team, i]].tolist()
            assert chosen == alone.get(i, [])


# The channel


@pytest.mark.slow
def test_the_channel_is_a_bidirectional_lstm_over_those_that_take_part() -> None:
    policy = atoc()
    net = policy.nets["channel"]
    obs = net.inputs["obs"]
    assert isinstance(obs, NestedColumns)
    weights = {n: 2 * x for n, x in policy.learn_mode(0).channel.weights().items()}  # type: ignore[attr-defined]
    inputs = obs.empty(7)
    inputs["thoughts"] = RNG.uniform(-1, 1, (7, 3, SIZE))
    inputs["joined"] = [[1, 1, 1], [1, 1, 0], [1, 0, 1]] * 2 + [[0, 1, 1]]
    in_torch = Model.inference_model(net.model, obs, net.heads, tuple(net.heads))
    for model in (net.model.inference_model(obs, net.heads, tuple(net.heads)), in_torch):
        model.load(weights)
        found = model(inputs)[INTEGRATED]
        for row in range(7):
            joined = np.flatnonzero(inputs["joined"][row])
            expected = slow.channel(weights, [*inputs["thoughts"][row, joined]])
            np.testing.assert_allclose(found[row, joined], expected, rtol=1e-4, atol=1e-6)


# Acting


def acting(policy: Atoc, mode: Any) -> Any:
    made = policy.eval_mode(0)
    made.load(State(mode.weights(), policy.command(Count())))
    return made


def obs_of(rows: int, lives: float = 0.8) -> Array:
    obs = OBS.empty(rows)
    obs["agents"] = RNG.standard_normal((rows, AGENTS, FEATURES))
    obs["alive"] = RNG.random((rows, AGENTS)) < lives
    obs["state"] = 0
    return obs


@pytest.mark.slow
@each_action
@pytest.mark.parametrize("position", [[], [[1, 3]]], ids=["thoughts", "positions"])
def test_agents_act_by_what_their_groups_make_of_their_thoughts(
    action: Column, position: Any
) -> None:
    policy = atoc(action, position=position, collaborators=1)
    mode = mode_of(policy)
    obs = obs_of(60)
    found = acting(policy, mode).forward(obs)["action"]
    tensors = {leaf: torch.from_numpy(obs[leaf].copy()) for leaf in obs.dtype.names}
    numbers = set()
    with torch.no_grad():
        for row in range(len(obs)):
            team = Team(mode, tensors, row)
            numbers.add(len(team.groups))
            weights = {n: x.astype(float) for n, x in mode.channel.weights().items()}
            integrated = slow.integrated(weights, [*team.thoughts.numpy()], team.groups)
            outputs = team.outputs(torch.from_numpy(np.float32(integrated)))
            for agent in np.flatnonzero(team.alive):
                out = outputs[agent].numpy()
                expected = 2 * np.tanh(out) if policy.choice.is_real else out.argmax()
                np.testing.assert_allclose(found[row, agent], expected, rtol=1e-3, atol=1e-5)
    assert {0, 1, 2} <= numbers  # teams without a group, and with several


def test_who_is_absent_says_nothing() -> None:
    policy = atoc()
    mode = acting(policy, mode_of(policy))
    obs = obs_of(50)
    other = obs.copy()
    absent = obs["alive"] == 0
    other["agents"] += 5 * absent[..., None]
    found, changed = (mode.forward(x)["action"] for x in (obs, other))
    assert absent.any()
    np.testing.assert_array_equal(found[~absent], changed[~absent])
    other["agents"] += 5 * ~absent[..., None]
    assert (mode.forward(other)["action"][~absent] != found[~absent]).any()


def test_others_matter_only_through_communication() -> None:
    policy = atoc()
    learner = mode_of(policy)
    obs = obs_of(50, lives=1.0)
    other = obs.copy()
    other["agents"][:, 1:] += 1
    for wish, differs in ((9.0, True), (-9.0, False)):
        with torch.no_grad():
            learner.attention.module.get_submodule("wants").out.bias.fill_(wish)
        mode = acting(policy, learner)
        first, second = (mode.forward(x)["action"][:, 0] for x in (obs, other))
        assert (first != second).any() == differs


# Learning


@each_action
@each_reward
def test_targets_are_those_of_what_the_target_networks_do(action: Column, rewards: str) -> None:
    policy = atoc(action, rewards=rewards)
    mode, b = mode_of(policy), batch_of(policy)
    uniform = torch.rand(len(b), AGENTS, policy.action_size)
    mode.uniform = lambda *shape: uniform
    found = mode.target_values(b)
    with torch.no_grad():
        for row in range(len(b)):
            team = Team(mode, b.next_obs, row, "_target")
            outputs = team.outputs(team.integrated(team.groups))
            drawn = policy.choice.of(outputs, None if policy.choice.is_real else uniform[row])
            for agent in range(AGENTS):
                reward = b.reward[row] if rewards == "team" else b.array("info/rewards")[row, agent]
                q = team.value(mode.critic_target, agent, drawn[agent])
                goes_on = team.alive[agent] and b.discount[row] > 0
                expected = float(reward) + (GAMMA * float(q) if goes_on else 0)
                assert float(found[row, agent]) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_critic_descends_its_squared_error_where_agents_act() -> None:
    policy = atoc(max_grad_norm=None)
    mode, b = mode_of(policy), batch_of(policy)
    target = mode.target_values(b)
    pairs = [(row, agent) for row in range(len(b)) for agent in np.flatnonzero(LIVES[row])]
    total = 0.0
    for row, agent in pairs:
        q = Team(mode, b.obs, row).value(mode.critic, agent, b.taken[row, agent])
        total += float((q - target[row, agent]).detach()) ** 2
    rates = {"lr": 0.0, "critic_lr": 0.0, "attention_lr": 0.0}
    found = learn_from(mode, b.batch, **rates).metrics
    assert float(found["critic_loss"]) == pytest.approx(total / len(pairs), rel=1e-4)


@each_action
def test_actor_and_channel_climb_the_values_of_what_agents_do(action: Column) -> None:
    policy = atoc(action, max_grad_norm=None, regularisation=0.01)
    mode, reference, b = mode_of(policy), mode_of(policy), batch_of(policy)
    uniform = torch.rand(len(b), AGENTS, policy.action_size)
    mode.uniform = lambda *shape: uniform
    loss, count = torch.zeros(()), 0
    for row in range(len(b)):
        team = Team(reference, b.obs, row)
        outputs = team.outputs(team.integrated(team.groups))
        drawn = policy.choice.of(outputs, None if policy.choice.is_real else uniform[row])
        for agent in np.flatnonzero(team.alive):
            loss = loss - team.value(reference.critic, agent, drawn[agent])
            loss = loss + 0.01 * outputs[agent].square().mean()
            count += 1
    networks = ("thought", "channel", "actor")
    parameters = [p for name in networks for p in getattr(reference, name).parameters]
    (loss / count).backward(inputs=parameters)
    mode.now.lr = mode.now.attention_lr = 0.0
    mode.learn_actor(b)
    for name in networks:
        grads, expected = getattr(mode, name).grads, getattr(reference, name).grads
        torch.testing.assert_close(grads, expected, rtol=1e-3, atol=1e-6)
        assert grads.abs().max() > 1e-5, name


@each_action
def test_agents_learn_to_communicate_where_their_groups_gain_most(action: Column) -> None:
    policy = atoc(action, max_grad_norm=None)
    mode, reference, b = mode_of(policy), mode_of(policy), batch_of(policy)
    gains, logits = [], []
    for row in range(len(b)):
        team = Team(reference, b.obs, row)
        wishes = reference.attention(team.thoughts.detach())["wants"]
        for i in range(AGENTS):
            alone = [j == i for j in range(AGENTS)]
            groups = slow.groups(team.distance, alone, team.alive, policy.members)
            if i not in groups:
                continue
            with torch.no_grad():
                pair = [team.outputs(team.integrated(g)) for g in (groups, {})]
                q = [[mean_value(team, j, outputs[j]) for j in groups[i]] for outputs in pair]
            gains.append(np.mean(q[0]) - np.mean(q[1]))
            logits.append(wishes[i])
    low, high = min(gains), max(gains)
    assert high - low > 1e-3
    loss = torch.zeros(())
    for gain, logit in zip(gains, logits, strict=True):
        share, p = float((gain - low) / (high - low)), logit.sigmoid()
        loss = loss - share * p.log() - (1 - share) * (1 - p).log()
    loss = loss / len(gains)
    loss.backward(inputs=reference.attention.parameters)
    mode.now.lr = mode.now.attention_lr = 0.0
    found = mode.learn_actor(b)
    assert float(found["attention_loss"].detach()) == pytest.approx(float(loss.detach()), rel=1e-3)
    torch.testing.assert_close(
        mode.attention.grads, reference.attention.grads, rtol=1e-2, atol=1e-5
    )


def mean_value(team: Team, agent: int, outputs: Any) -> float:
    """Q of a real-valued action, or the mean over drawn ones."""
    critic = team.mode.critic
    if team.policy.choice.is_real:
        return float(team.value(critic, agent, outputs.tanh()))
    each = torch.eye(len(outputs))
    p = outputs.softmax(-1)
    return float(sum(p[a] * team.value(critic, agent, each[a]) for a in range(len(outputs))))


def test_features_are_normalised_by_what_agents_that_act_see_and_do() -> None:
    policy = atoc(
        actor=Mlp(hidden=[8], normalise_obs=True), critic=Mlp(hidden=[8], normalise_obs=True)
    )
    mode: Any = policy.learn_mode(0)
    batch = episode(policy, LIVES)
    learn_from(mode, batch)
    seen = batch["obs/agents"][batch["obs/alive"] != 0]
    moments = mode.thought.module.features.moments
    assert int(moments.count) == len(seen)
    np.testing.assert_allclose(moments.mean[:FEATURES], seen.mean(0), rtol=1e-4, atol=1e-6)
    assert int(mode.critic.module.features.moments.count) == len(seen)


@pytest.mark.parametrize(
    ("params", "what"),
    [
        ({"position": [[1, 9]]}, r"\[1, 9\] is no range of entries of an observation of 4"),
        ({"action": Column("int64", (AGENTS, 2), low=0.0, high=3.0)}, "real-valued actions or one"),
        ({"obs": "images", "position": [[0, 1]]}, "`position` names entries of a row of real"),
        ({"obs": "alone"}, "there is one agent"),
    ],
)
def test_settings_that_do_not_fit_are_refused(params: dict[str, Any], what: str) -> None:
    given = {"action": REAL, "obs": OBS, **params}
    leaves = dict(OBS.columns)
    if given["obs"] == "images":
        leaves["agents"] = Column("uint8", (AGENTS, 8, 8, 3))
        given |= {"obs": NestedColumns(leaves)}
    if given["obs"] == "alone":
        alone = {n: replace(c, shape=(1, *c.shape[1:])) for n, c in leaves.items() if n != "state"}
        given |= {"obs": NestedColumns(alone), "action": replace(REAL, shape=(1, 2))}
    with pytest.raises(UnsoundError, match=what):
        Atoc(**given)


# A task of one step, in which each agent must do what it observes


@pytest.mark.slow
def test_agents_learn_what_their_own_rewards_ask_for() -> None:
    policy = atoc(rewards="own", lr=0.003, critic_lr=0.01, critic=Mlp(hidden=[32]))
    mode: Any = policy.learn_mode(0)
    for seed in range(120):
        none = np.zeros(64, np.float32)
        batch = episode(policy, np.ones((65, AGENTS)), seed=seed, discount=none)
        wanted = np.tanh(batch["obs/agents"][..., :2])
        rewards = -np.square(batch["action"] / 2 - wanted).sum(-1)
        mode.forward(batch.replace(**{"info/rewards": rewards}), policy.command(Count()))
    obs = obs_of(100, lives=1.0)
    action = acting(policy, mode).forward(obs)["action"]
    error = np.square(action / 2 - np.tanh(obs["agents"][..., :2])).mean()
    assert error < 0.1 < np.square(np.tanh(obs["agents"][..., :2])).mean()
