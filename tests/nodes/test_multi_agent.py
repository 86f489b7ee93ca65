"""The base of policies of several agents: what one agent observes and does, when acting and when learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flowrl.core.batch import Array, Batch, Column
from flowrl.core.config import param, part
from flowrl.core.errors import UsageError
from flowrl.core.facts import UnsoundError
from flowrl.core.state import Count, State
from flowrl.nodes.acting import epsilon_greedy, greedy
from flowrl.nodes.algorithm import Net
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.pettingzoo import PettingZoo
from flowrl.nodes.greedy_policy import GreedyPolicy
from flowrl.nodes.models.heads import LinearHead
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.multi_agent import MultiAgent, MultiAgentLearnMode
from flowrl.nodes.network_learn_mode import LearnBatch
from flowrl.nodes.observations import NestedColumns
from flowrl.nodes.schedules import Scheduled, scheduled

ACTION = Column("int64", (3,), low=(0.0,) * 3, high=(3.0,) * 3)
OBS = {"agents": Column("float32", (3, 2)), "alive": Column("int8", (3,), n=2)}
MASK = {"action_mask": Column("int8", (12,), n=2)}


class Values(MultiAgent):
    """The values of the actions of each agent, from which nothing is learned."""

    reads, unrolls = ("obs",), "possible"

    class Config(MultiAgent.Config):
        model: Any = part("model", "the network", default="mlp")
        epsilon: Scheduled = scheduled(0.5, "share of random actions")
        unroll_steps: int | None = param(None, "steps of unrolls")

    def networks(self) -> dict[str, Net]:
        heads = {"q": LinearHead(self.action_size)}
        return {"net": Net(self.model(), {"obs": self.own_obs}, heads, masked="q")}

    def collect_steps(self) -> Any:
        return [epsilon_greedy("q")]

    def eval_steps(self) -> Any:
        return [greedy("q")]

    class Learn(MultiAgentLearnMode):
        net: Any

        def learn(self, b: LearnBatch) -> dict[str, Any]:
            return {"loss": self.net(self.own(b.obs))["q"].mean()}


def make(*more: dict[str, Column], **params: Any) -> Values:
    obs = {name: column for leaves in (OBS, *more) for name, column in leaves.items()}
    return Values(obs=NestedColumns(obs), action=ACTION, **params)


def observations(policy: Values, rows: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    assert isinstance(policy.obs, NestedColumns)
    obs = policy.obs.empty(rows)
    for leaf, column in policy.obs.columns.items():
        shape = (rows, *column.shape)
        real = np.dtype(column.dtype).kind == "f"
        obs[leaf] = rng.standard_normal(shape) if real else rng.integers(2, size=shape)
    return obs


def tensors(obs: Array) -> dict[str, torch.Tensor]:
    assert obs.dtype.names is not None
    return {leaf: torch.from_numpy(np.ascontiguousarray(obs[leaf])) for leaf in obs.dtype.names}


def loaded(policy: Values, mode: Any) -> Any:
    learn: Any = policy.learn_mode(1)
    mode.load(State(learn.weights(), policy.command(Count())))
    return mode


def test_one_agent_observes_its_own_row_its_number_and_its_mask() -> None:
    policy = make(MASK)
    assert policy.own_obs.columns == {
        "agents": Column("float32", (2,)),
        "agent_number": Column("int64"),
        "action_mask": Column("int8", (4,)),
    }
    assert policy.own_obs.columns["agent_number"].n == 3
    assert (policy.own_action, policy.own_action.n) == (Column("int64"), 4)
    assert "agent_number" not in make(agent_numbers=False).own_obs.columns


def test_what_one_agent_does_has_its_own_bounds() -> None:
    action = Column("float32", (3, 2), low=(-1.0, -2.0) * 3, high=(1.0, 2.0) * 3)
    own = Values(obs=NestedColumns(OBS), action=action).own_action
    assert (own, own.low, own.high) == (Column("float32", (2,)), (-1.0, -2.0), (1.0, 2.0))


@pytest.mark.parametrize("model", [Mlp(hidden=[16]), Gru(size=8)])
def test_what_another_agent_observes_changes_nothing(model: Any) -> None:
    policy = make(MASK, model=model, unroll_steps=2 if isinstance(model, Gru) else None)
    greedy_mode = loaded(policy, policy.eval_mode(0))
    memory = {n: np.zeros((64, *c.shape), c.dtype) for n, c in greedy_mode.memory.items()}
    obs = observations(policy, 64)
    changed = obs.copy()
    changed["agents"][:, 1:] += 1.0
    one, other = (greedy_mode.forward(x, memory) for x in (obs, changed))
    assert set(one) == {"action", *memory}
    for name in one:
        np.testing.assert_array_equal(one[name][:, 0], other[name][:, 0])
        assert (one[name][:, 1:] != other[name][:, 1:]).any()


def test_each_agent_explores_by_itself_within_its_own_mask() -> None:
    policy = make(MASK, epsilon=1.0)
    obs = observations(policy, 500)
    obs["action_mask"] = np.tile([1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1], (500, 1))
    action = loaded(policy, policy.collect_mode(0)).forward(obs)["action"]
    assert [set(column.tolist()) for column in action.T] == [{0, 1}, {1, 2}, {2, 3}]
    assert len({tuple(row) for row in action.tolist()}) == 8
    half = make(epsilon=0.5)
    obs, mode = observations(half, 2000), loaded(half, half.collect_mode(0))
    differs = mode.forward(obs)["action"] != loaded(half, half.eval_mode(0)).forward(obs)["action"]
    assert differs.mean(0) == pytest.approx(0.5 * 3 / 4, abs=0.05)
    assert np.corrcoef(differs.T)[0, 1] == pytest.approx(0, abs=0.1)


def test_agents_of_equal_observations_differ_by_their_numbers_only() -> None:
    for numbers in (True, False):
        policy = make(agent_numbers=numbers)
        obs = observations(policy, 64)
        obs["agents"] = obs["agents"][:, :1]
        action = loaded(policy, policy.eval_mode(0)).forward(obs)["action"]
        assert (action == action[:, :1]).all() != numbers


def test_learning_sees_what_acting_saw() -> None:
    policy = make(MASK, {"last_action": ACTION})
    obs = observations(policy, 5)
    rows, own = policy.agents.rows_of(obs), policy.agents.own(tensors(obs))
    assert rows.dtype.names is not None
    assert set(rows.dtype.names) == set(own)
    for leaf, values in own.items():
        np.testing.assert_array_equal(rows[leaf].reshape(values.shape), values.numpy())
    unrolls = {leaf: torch.stack([x, x], 1) for leaf, x in tensors(obs).items()}
    assert policy.agents.own(unrolls)["action_mask"].shape == (5, 2, 3, 4)
    assert policy.agents.own(unrolls)["last_action"].shape == (5, 2, 3)


def test_unrolls_go_through_the_steps_of_each_agent() -> None:
    policy = make(model=Gru(size=8), unroll_steps=4)
    learn: Any = policy.learn_mode(1)
    steps = [observations(policy, 5, seed) for seed in range(4)]
    obs = {leaf: torch.stack([tensors(s)[leaf] for s in steps], 1) for leaf in OBS}
    memory = np.random.default_rng(0).standard_normal((5, 3, 8)).astype(np.float32)
    begins = torch.zeros((5, 4), dtype=torch.bool)
    begins[2, 2] = True
    heads = learn.unroll(learn.net, obs, torch.from_numpy(memory), begins)
    assert heads["q"].shape == (5, 4, 3, 4)
    mode = loaded(policy, policy.eval_mode(0))
    known = {"memory": memory}
    for t, step in enumerate(steps):
        known["memory"] = np.where(begins.numpy()[:, t, None, None], 0, known["memory"])
        found = mode.forward(step, known)
        np.testing.assert_array_equal(found["action"], heads["q"][:, t].argmax(-1))
        np.testing.assert_allclose(
            found["memory"], heads["memory"][:, t].detach().numpy(), atol=1e-5
        )
        known = {"memory": found["memory"]}


def test_the_state_is_that_of_the_env_or_all_observations() -> None:
    policy = make({"state": Column("float32", (2, 3))}, MASK)
    obs = tensors(observations(policy, 4))
    assert policy.agents.state == Column("float32", (6,))
    assert torch.equal(policy.agents.state_of(obs), obs["state"].reshape(4, 6))
    joined = make({"last_action": ACTION}, MASK)
    obs = tensors(observations(joined, 4))
    assert joined.agents.state == Column("float32", (3 * (2 + 4 + 1),))
    expected = [
        torch.cat(
            [
                row["agents"].reshape(-1),
                torch.nn.functional.one_hot(row["last_action"], 4).reshape(-1).float(),
                row["alive"].float(),
            ]
        )
        for row in ({leaf: x[i] for leaf, x in obs.items()} for i in range(4))
    ]
    assert torch.equal(joined.agents.state_of(obs), torch.stack(expected))


def test_statistics_of_observations_are_those_of_agents_that_act() -> None:
    policy = make(model=Mlp(hidden=[4], normalise_obs=True))
    obs = observations(policy, 8)
    obs["agents"][obs["alive"] == 0] = 1e6
    learn: Any = policy.learn_mode(1)
    batch = Batch({f"obs/{leaf}": np.ascontiguousarray(obs[leaf]) for leaf in OBS})
    learn.forward(batch, policy.command(Count()))
    weights = learn.weights()
    acting = obs["agents"][obs["alive"] == 1]
    assert weights["features.moments.count"] == len(acting)
    np.testing.assert_allclose(
        weights["features.moments.mean"][:2], acting.mean(0), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("leaves", "action", "what"),
    [
        ({"alive": None}, ACTION, "without `agents` and `alive`; give an env of several agents"),
        ({}, Column("int64", n=3), "acts for 3 agents, and the env takes the action int64"),
        (
            {"last_reward": Column("float32", (1,))},
            ACTION,
            "'last_reward' is float32\\[1\\], and there are 3 agents",
        ),
        (
            {"agents": Column("float32", (3, 2), frames=3)},
            ACTION,
            "each leaf of the observations but `state` must begin",
        ),
        ({"action_mask": Column("int8", (4,))}, ACTION, "3 agents have 4 actions each; the mask"),
        (
            {},
            Column("float32", (3, 1), low=(-1.0, -1.0, -2.0), high=1.0),
            "the bounds of 'action' differ from agent to agent",
        ),
    ],
)
def test_envs_that_do_not_fit_are_refused(leaves: Any, action: Column, what: str) -> None:
    columns = {n: c for n, c in {**OBS, **leaves}.items() if c is not None}
    with pytest.raises(UnsoundError, match=what):
        Values(obs=NestedColumns(columns), action=action)
    with pytest.raises(UnsoundError, match="give an env of several agents"):
        Values(obs=Column("float32", (4,)), action=Column("int64", n=2))
    with pytest.raises(UnsoundError, match="give the policy `unroll_steps: 16`"):
        make(model=Gru(size=8))


def test_a_collector_keeps_a_memory_for_each_agent() -> None:
    env = PettingZoo(id="tests.nodes.envs.agent_envs:NumberedAgents", info=["rewards"])
    envs = SerialEnvManager(env=env, count=2, seed=1)
    spec = envs.spec()
    policy = Values(obs=spec.obs, action=spec.action, model=Gru(size=8), unroll_steps=3)
    learn: Any = policy.learn_mode(1)
    weights = State(learn.weights(), policy.command(Count()))
    batch = SampleCollector(envs=envs, policy=policy, n_sample=12, seed=1).fire(weights)
    assert {n: batch[n].shape for n in ("memory", "action", "obs/agents", "info/rewards")} == {
        "memory": (4, 3, 8),
        "action": (4, 3, 3),
        "obs/agents": (4, 3, 3, 2),
        "info/rewards": (4, 3, 3),
    }
    expected = (batch["action"] == [0, 1, 2]) & (batch["obs/alive"] == 1)
    np.testing.assert_array_equal(batch["info/rewards"], expected)
    assert np.abs(batch["memory"]).sum() > 0
    actor = GreedyPolicy(policy, weights)
    assert actor.act(envs.reset()).shape == (2, 3)
    assert actor.memory["memory"].shape == (2, 3, 8)


def test_a_policy_of_agents_is_not_exported(tmp_path: Any) -> None:
    policy = make()
    learn: Any = policy.learn_mode(1)
    actor = GreedyPolicy(policy, State(learn.weights(), {}))
    with pytest.raises(UsageError, match="it acts for several agents"):
        actor.export_onnx(tmp_path / "policy.onnx")
