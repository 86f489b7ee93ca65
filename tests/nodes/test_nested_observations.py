"""Nested observations: structured arrays between env and policy, one column per leaf in a batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.facts import Surroundings
from flowrl.nodes.buffers.naive_replay_buffer import NaiveReplayBuffer
from flowrl.nodes.collectors.sample_collector import SampleCollector
from flowrl.nodes.env_managers.env_error import EnvError
from flowrl.nodes.env_managers.serial_env_manager import SerialEnvManager
from flowrl.nodes.envs.gymnasium import Gymnasium
from flowrl.nodes.learners.learner import Learner
from flowrl.nodes.models.cnn import Cnn
from flowrl.nodes.models.heads import Heads
from flowrl.nodes.models.model import ModuleModel
from flowrl.nodes.observations import (
    NestedColumns,
    columns_under,
    flatten_columns,
    leaf_value,
    obs_columns_in,
    select_rows,
)
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.policies.random import Random
from flowrl.nodes.policy import Policy

LEAVES = ["camera", "pair/0", "pair/1"]
SMALL_CNN = Cnn(channels=[4], kernels=[3], strides=[2], hidden=[32])  # for images of 6x6 pixels
PAIR = NestedColumns({"a": Column("uint8", (3,)), "b": Column("float32")})


def envs_of(count: int = 3, **kwargs: object) -> SerialEnvManager:
    part = Gymnasium(id="tests.nodes.nested_envs:Nested", kwargs=kwargs)
    return SerialEnvManager(env=part, count=count, seed=2)


def policy_of(cls: type[Policy], envs: SerialEnvManager, **params: object) -> Policy:
    spec = envs.spec()
    return cls(obs=spec.obs, action=spec.action, **params)


def test_an_env_manager_returns_structured_arrays() -> None:
    envs = envs_of()
    obs = envs.reset()
    assert obs.shape == (3,)
    assert obs.dtype.names == tuple(LEAVES)
    assert obs["camera"].shape == (3, 6, 6, 1)
    stepped = envs.advance(obs["pair/0"])
    np.testing.assert_array_equal(stepped.reward, 1)
    np.testing.assert_array_equal(stepped.obs["camera"], 10)
    np.testing.assert_allclose(stepped.obs["pair/1"], [[0.1, -0.5]] * 3)


@pytest.mark.parametrize(
    ("broken", "what"),
    [
        ("nan", r"step 2: 'pair/1': the observation is not finite"),
        ("lacks", r"step 2: the observation has no 'pair/0', which its space requires"),
        ("no tuple", r"step 2: the observation has no 'pair/0', which its space requires"),
    ],
)
def test_the_error_of_an_invalid_leaf_names_it(broken: str, what: str) -> None:
    envs = envs_of(broken=broken)
    envs.reset()
    envs.advance(np.zeros(3, np.int64))
    with pytest.raises(EnvError, match=what):
        envs.advance(np.zeros(3, np.int64))


@pytest.mark.parametrize("nstep", [1, 3])
def test_each_leaf_is_a_column_as_described(nstep: int) -> None:
    envs = envs_of()
    policy = policy_of(Dqn, envs, nstep=nstep, model=SMALL_CNN)
    node = SampleCollector(envs=envs, policy=policy, n_sample=31, seed=1)
    known = Surroundings({}, {"envs": envs.spec()}, frozenset({"data"}))
    described = node.describe(node.config, known).outs["data"]
    batch = node.fire(Learner(policy=policy).state())
    assert batch.schema == described
    assert {f"obs/{leaf}" for leaf in LEAVES} <= set(batch)
    inside = ~(batch["last"] | batch["terminated"])
    steps = batch["next_obs/pair/1"][inside, 0] - batch["obs/pair/1"][inside, 0]
    np.testing.assert_allclose(steps, 0.1, atol=1e-6)  # whatever the policy sums
    assert all(batch[name].flags.c_contiguous for name in batch)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Dqn, Ppo])
def test_policies_learn_from_a_leaf(cls: type[Policy]) -> None:
    envs = envs_of(count=8)
    if cls is Dqn:
        params = {"gamma": 0.0, "epsilon": {"end": 0.3, "env_steps": 400}}
    else:
        params = {"gamma": 0.0, "lr": 3e-3}
    policy = policy_of(cls, envs, model=SMALL_CNN, **params)
    collector = SampleCollector(envs=envs, policy=policy, n_sample=128, seed=1)
    buffer, learner = NaiveReplayBuffer(seed=1), Learner(policy=policy, seed=1)
    for _ in range(30):
        batch = collector.fire(learner.state())
        if cls is Ppo:
            learner.train(batch, 128)
            continue
        buffer.push(batch)
        for _ in range(4):
            learner.train(buffer.sample(), 32)
    greedy = policy.eval_mode(0)
    greedy.load(learner.state())
    obs = envs.reset()
    np.testing.assert_array_equal(greedy.forward(obs)["action"], obs["pair/0"])


class TwoLeaves(nn.Module):
    """One linear layer on two of the leaves."""

    def __init__(self, obs: NestedColumns, heads: Heads) -> None:
        super().__init__()
        pixels = obs.columns["camera"].row_bytes
        self.q = nn.Linear(pixels + 2, heads["q"].n)

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        parts = [obs["camera"].flatten(1) / 255, obs["pair/1"]]
        return {"q": self.q(torch.cat(parts, 1))}


def test_a_module_gets_nested_observations_as_tensors_by_leaf() -> None:
    envs = envs_of()
    model = ModuleModel(path=f"{__name__}:TwoLeaves")
    policy = policy_of(Dqn, envs, model=model, dueling=False)
    learner = Learner(policy=policy)
    rows = SampleCollector(envs=envs, policy=policy, n_sample=30).fire(learner.state())
    before = learner.state().arrays["q.weight"].copy()
    learner.train(rows)
    assert not np.array_equal(before, learner.state().arrays["q.weight"])


def test_the_random_policy_acts_on_nested_observations() -> None:
    envs = envs_of()
    mode = policy_of(Random, envs).collect_mode(0)
    assert mode.forward(envs.reset())["action"].shape == (3,)


def test_columns_are_converted_back_to_observations() -> None:
    columns = columns_under("obs", PAIR)
    assert list(columns) == ["obs/a", "obs/b"]
    assert obs_columns_in(columns, "obs") == PAIR
    assert obs_columns_in({"obs": Column("float32")}, "obs") == Column("float32")
    assert obs_columns_in(columns, "next_obs") is None


def test_rows_of_a_batch_are_taken_by_leaf() -> None:
    array = PAIR.empty(4)
    array["a"], array["b"] = 7, np.arange(4)
    batch = Batch(flatten_columns({"obs": array, "reward": np.arange(4.0)}))
    assert list(batch) == ["obs/a", "obs/b", "reward"]
    some = select_rows(batch, "obs", np.array([3, 1]))
    assert isinstance(some, dict)
    np.testing.assert_array_equal(some["b"], [3, 1])
    with pytest.raises(KeyError, match="no column 'next_obs'; there are obs/a, obs/b, reward"):
        select_rows(batch, "next_obs")


def test_a_leaf_is_found_in_dictionaries_and_tuples() -> None:
    assert leaf_value({"a": ({"b": 3},)}, "a/0/b") == 3
    with pytest.raises(TypeError, match="found a set where the space has a tuple"):
        leaf_value({1, 2}, "0")


GRAPH = """
extends: cartpole_dqn
env: {id: "tests.nodes.nested_envs:Nested", max_episode_steps: 4}
policy: {model: {type: cnn, channels: [4], kernels: [3], strides: [2], hidden: [32]}}
nodes: {evaluator: {stop_value: null, episodes: 3}}
"""


@pytest.mark.slow
def test_a_graph_with_nested_observations_has_the_same_digest_in_processes(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(GRAPH)
    runs = [
        flowrl.load(tmp_path / "g.yaml").run(
            train_iters=100, out=tmp_path / place, placement=place, seed=1
        )
        for place in ("serial", "processes")
    ]
    assert runs[0].digest == runs[1].digest


def test_a_reward_model_reads_nested_observations(tmp_path: Path) -> None:
    small = "nodes: {rnd: {model: {type: cnn, channels: [4], kernels: [3], strides: [2]}}, "
    graph = GRAPH.replace("cartpole_dqn", "cartpole_dqn_rnd").replace("nodes: {", small)
    (tmp_path / "g.yaml").write_text(graph)
    assert flowrl.load(tmp_path / "g.yaml").check().problems == []
