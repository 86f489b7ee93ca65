"""A greedy policy with fixed weights, and the observations that it accepts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Column
from flowrl.core.state import State
from flowrl.nodes.envs.spec import observation_columns
from flowrl.nodes.greedy_policy import GreedyPolicy, observation_rows
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.models.recurrent import Gru
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.r2d2 import R2d2
from flowrl.nodes.policies.random import Random
from flowrl.nodes.policy import Policy
from tests.nodes.nested_envs import Nested

VECTOR, THREE = Column("float32", (4,)), Column("int64", n=3)
OBS = np.random.default_rng(1).normal(size=(6, 2, 4))  # (T, B, …), as float64


def greedy(policy: Policy) -> GreedyPolicy:
    return GreedyPolicy(policy, State(policy.learn_mode(3).weights()))


def recurrent() -> GreedyPolicy:
    return greedy(R2d2(obs=VECTOR, action=THREE, model=Gru(hidden=[5], size=4), unroll_steps=6))


def test_an_observation_has_the_same_action_alone_and_in_a_batch() -> None:
    policy = greedy(Dqn(obs=VECTOR, action=THREE, model=Mlp(hidden=[5])))
    actions = policy.act(OBS[:, 0])
    assert actions.shape == (6,)
    assert [policy.act(obs) for obs in OBS[:, 0]] == list(actions)
    assert policy.act(list(OBS[0, 0])) == actions[0]
    assert len(policy.act(OBS[0])) == 2  # without memory, the number of rows may change
    assert len(set(actions)) > 1


def test_a_recurrent_policy_remembers_until_it_is_reset() -> None:
    policy = recurrent()
    first = [policy.act(obs) for obs in OBS]
    continued = [policy.act(obs) for obs in OBS]
    policy.reset()
    again = [policy.act(obs) for obs in OBS]
    np.testing.assert_array_equal(first, again)
    memory = {name: array.copy() for name, array in policy.memory.items()}
    policy.reset([True, False])
    assert not policy.memory["memory"][0].any()
    np.testing.assert_array_equal(policy.memory["memory"][1], memory["memory"][1])
    assert np.shape(continued) == np.shape(first)


def test_a_batch_of_a_recurrent_policy_has_the_actions_of_its_rows() -> None:
    together, alone = recurrent(), [recurrent(), recurrent()]
    for obs in OBS:
        rows = [policy.act(row) for policy, row in zip(alone, obs, strict=True)]
        np.testing.assert_array_equal(together.act(obs), rows)


def test_a_recurrent_policy_refuses_another_number_of_rows_without_a_reset() -> None:
    policy = recurrent()
    policy.act(OBS[0])
    with pytest.raises(ValueError, match=r"1 observations after 2, .* call `reset\(\)` before"):
        policy.act(OBS[0, 0])
    policy.reset()
    policy.act(OBS[0, 0])


def test_nested_observations_are_accepted_as_the_env_returns_them() -> None:
    env = Nested()
    obs, columns = env.reset(seed=0)[0], observation_columns(env.observation_space)
    rows, is_batch = observation_rows(columns, obs)
    assert (rows.shape, is_batch) == ((1,), False)
    assert rows["pair/0"][0] == obs["pair"][0]
    np.testing.assert_allclose(rows["pair/1"][0], obs["pair"][1])
    pair = (np.array([0, 1]), np.zeros((2, 2)))
    several = {"camera": np.zeros((2, 6, 6, 1), np.uint8), "pair": pair}
    rows, is_batch = observation_rows(columns, several)
    assert (rows.shape, is_batch) == ((2,), True)
    again, is_batch = observation_rows(columns, rows)
    assert is_batch
    np.testing.assert_array_equal(again, rows)


@pytest.mark.parametrize(
    ("obs", "reported"),
    [
        (np.zeros(3), r"has the shape \(3,\); expected \(4,\), or \(B, 4\) for a batch"),
        (np.zeros((2, 2, 4)), r"has the shape \(2, 2, 4\)"),
        (None, r"has the shape \(\)"),
        (np.zeros(4, complex), "has the dtype complex128; expected float32"),
    ],
)
def test_an_unsuitable_observation_is_refused(obs: Any, reported: str) -> None:
    policy = greedy(Dqn(obs=VECTOR, action=THREE, model=Mlp(hidden=[5])))
    with pytest.raises(ValueError, match=f"act: the observation {reported}"):
        policy.act(obs)


def test_a_missing_leaf_and_unequal_leaves_are_named() -> None:
    columns = observation_columns(Nested().observation_space)
    camera, pair = np.zeros((2, 6, 6, 1), np.uint8), (np.zeros(3, int), np.zeros((3, 2)))
    with pytest.raises(ValueError, match="the observation has no leaf 'pair/0'"):
        observation_rows(columns, {"camera": camera})
    with pytest.raises(ValueError, match="differ in their number of rows: 'camera' 2, 'pair/0' 3"):
        observation_rows(columns, {"camera": camera, "pair": pair})


def test_weights_are_needed_unless_the_policy_acts_without() -> None:
    with pytest.raises(ValueError, match=r"Dqn needs weights to act; .*`learner.state\(\)`"):
        GreedyPolicy(Dqn(obs=VECTOR, action=THREE))
    assert GreedyPolicy(Random(obs=VECTOR, action=THREE)).act(OBS[0]).shape == (2,)
