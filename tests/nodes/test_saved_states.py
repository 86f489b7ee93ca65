"""States that are saved and loaded are complete, and those of something else are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flowrl.core.batch import Column
from flowrl.core.context import Context
from flowrl.core.state import State
from flowrl.nodes.models.mlp import Mlp
from flowrl.nodes.policies.dqn import Dqn
from flowrl.nodes.policies.ppo import Ppo
from flowrl.nodes.rewards.rnd import Rnd
from tests.nodes.learn_modes import CONTINUOUS, DISCRETE, OBS, learn, learn_from, rows, same_bits

Make = Callable[..., Any]


def dqn(**params: Any) -> Any:
    return Dqn(obs=OBS, action=DISCRETE, target={"every_iters": 4}, **params).learn_mode(0)


def ppo(**params: Any) -> Any:
    return Ppo(obs=OBS, action=DISCRETE, **params).learn_mode(0)


every_mode = pytest.mark.parametrize("make", [dqn, ppo])


@every_mode
def test_a_state_with_missing_or_unknown_names_is_refused(make: Make) -> None:
    state = make().state_dict()
    for name in state:
        less = {k: v for k, v in state.items() if k != name}
        with pytest.raises(
            ValueError, match=f"the state lacks .*'{name}'.*is it that of another model"
        ):
            make().load_state_dict(less)
    with pytest.raises(ValueError, match=r"has unknown \['more'\]"):
        make().load_state_dict({**state, "more": 1})


@every_mode
def test_a_state_of_another_shape_is_refused(make: Make) -> None:
    small = make(model=Mlp(hidden=[8]))
    with pytest.raises(ValueError, match="is it that of another model"):
        make(model=Mlp(hidden=[8, 8])).load_state_dict(small.state_dict())


def test_a_state_of_another_algorithm_is_refused() -> None:
    with pytest.raises(ValueError, match="dqn: the state lacks"):
        dqn().load_state_dict(ppo().state_dict())
    with pytest.raises(ValueError, match="ppo: the state lacks"):
        ppo().load_state_dict(dqn().state_dict())


@every_mode
def test_learning_does_not_change_a_saved_state(make: Make) -> None:
    mode, again = make(), make()
    learn(mode, range(3))
    saved = mode.state_dict()
    learn(mode, range(3, 6))
    again.load_state_dict(saved)
    learn(again, range(3, 6))
    assert same_bits(again.state_dict(), mode.state_dict())
    assert not same_bits(saved, mode.state_dict())


@every_mode
def test_loading_replaces_the_whole_state(make: Make) -> None:
    """Otherwise moments of the optimiser or random numbers would change the next step."""
    fresh, used = make(), make()
    start = make().state_dict()
    learn(used, range(10, 15))
    used.load_state_dict(start)
    for mode in (fresh, used):
        learn(mode, range(4))
    assert same_bits(fresh.state_dict(), used.state_dict())


@pytest.mark.parametrize("policy", [Dqn(obs=OBS, action=DISCRETE), Ppo(obs=OBS, action=CONTINUOUS)])
def test_learning_does_not_change_returned_weights(policy: Any) -> None:
    mode, act = policy.learn_mode(0), policy.eval_mode(0)
    given = mode.weights()
    before = {name: array.copy() for name, array in given.items()}
    columns = {"action": np.zeros((32, 2), np.float32), "unclipped": np.zeros((32, 2), np.float32)}
    batch = rows(**(columns if isinstance(policy, Ppo) else {}))
    act.load(State(given))
    obs = rows(5)["obs"]
    acted = act.forward(obs)["action"].copy()
    for _ in range(3):
        learn_from(mode, batch)
    assert all(np.array_equal(given[name], before[name]) for name in before)
    np.testing.assert_array_equal(act.forward(obs)["action"], acted)
    assert any(not np.array_equal(mode.weights()[name], before[name]) for name in before)


def test_a_state_of_rnd_with_missing_or_unknown_names_is_refused() -> None:
    node = Rnd()
    node.fire(rows())
    state = node.state_dict()
    less = {k: v for k, v in state["model"].items() if k != "predictor"}
    with pytest.raises(ValueError, match=r"rnd: the state lacks \['predictor'\]"):
        Rnd().load_state_dict({**state, "model": less})


def test_a_state_of_rnd_brings_its_columns() -> None:
    """Made by hand, a node knows its columns from its first rows only, and not how many values one has."""
    schema = {**rows().schema, "next_obs": Column("int64", n=5)}

    def batch(seed: int) -> Any:
        seen = np.random.default_rng(seed).integers(5, size=32)
        return rows(seed=seed, next_obs=seen)

    one = Rnd(config=Rnd.Config(weight=1.0), context=Context("rnd", inputs={"data": schema}))
    other = Rnd(weight=1.0)
    one.fire(batch(0))
    assert one.state_dict()["model"]["obs_moments"] == {}  # one-hot observations are not normalised
    other.load_state_dict(one.state_dict())
    a, b = (node.fire(batch(1))["reward"] for node in (one, other))
    np.testing.assert_array_equal(a, b)
