"""The random policy draws from the whole action space."""

from __future__ import annotations

import numpy as np
import pytest

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.policies.random import Random
from tests.nodes.toy_policies import weights

OBS = Column("float32", (2,))


def actions(action: Column, rows: int = 500, seed: int = 0) -> np.ndarray:
    mode = Random(obs=OBS, action=action).collect_mode(seed)
    mode.load(weights(0))
    found = mode.forward(np.zeros((rows, 2), np.float32))["action"]
    assert found.dtype == action.dtype
    assert found.shape == (rows, *action.shape)
    return found


def test_discrete_actions_are_drawn_uniformly() -> None:
    counts = np.bincount(actions(Column("int64", n=4), 4000))
    assert counts.min() > 900
    assert counts.sum() == 4000


def test_each_binary_choice_is_drawn_independently() -> None:
    assert actions(Column("int8", (3,), n=2)).mean(0) == pytest.approx([0.5] * 3, abs=0.1)


def test_several_discrete_actions_reach_exactly_their_bounds() -> None:
    found = actions(Column("int64", (2,), low=(0.0, 0.0), high=(2.0, 5.0)))
    assert found.min(0).tolist() == [0, 0]
    assert found.max(0).tolist() == [2, 5]


def test_continuous_actions_fill_their_bounds() -> None:
    found = actions(Column("float32", (2,), low=(-1.0, 2.0), high=(1.0, 6.0)))
    assert found.mean(0) == pytest.approx([0.0, 4.0], abs=0.3)
    assert (found >= [-1, 2]).all()
    assert (found <= [1, 6]).all()


def test_unbounded_actions_are_normally_distributed() -> None:
    found = actions(Column("float32", (2,)))
    assert found.std(0) == pytest.approx([1.0, 1.0], abs=0.2)


def test_one_sided_bounds_are_kept() -> None:
    assert actions(Column("float32", (1,), low=(0.0,), high=(np.inf,))).min() == 0.0


def test_actions_depend_on_the_seed() -> None:
    column = Column("int64", n=7)
    assert np.array_equal(actions(column, seed=1), actions(column, seed=1))
    assert not np.array_equal(actions(column, seed=1), actions(column, seed=2))


def test_it_cannot_learn() -> None:
    policy = Random(obs=OBS, action=Column("int64", n=2))
    for refuse in (policy.learn_columns, lambda: policy.learn_mode(0)):
        with pytest.raises(
            UnsoundError, match="the random policy does not learn; give the learner"
        ):
            refuse()


def test_it_evaluates_as_it_collects() -> None:
    policy = Random(obs=OBS, action=Column("int64", n=9))
    a, b = policy.eval_mode(3), policy.collect_mode(3)
    obs = np.zeros((20, 2))
    assert np.array_equal(a.forward(obs)["action"], b.forward(obs)["action"])
