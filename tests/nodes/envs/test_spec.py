"""Columns of spaces."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from flowrl.core.batch import Column
from flowrl.core.facts import UnsoundError
from flowrl.nodes.envs.spec import env_columns, observation_columns, space_column
from flowrl.nodes.observations import NestedColumns


def test_double_precision_observations_become_single_precision() -> None:
    assert space_column(spaces.Box(-1, 1, (3,), np.float64), "observation") == Column(
        "float32", (3,)
    )


def test_images_stay_uint8_and_equal_bounds_are_one_number() -> None:
    found = space_column(spaces.Box(0, 255, (4, 84, 84), np.uint8), "observation")
    assert found == Column("uint8", (4, 84, 84))
    assert (found.low, found.high) == (0.0, 255.0)


def test_continuous_actions_have_bounds_for_each_element() -> None:
    low, high = np.array([[-1, -2], [1, 2]], np.float32)
    space = spaces.Box(low, high, dtype=np.float32)
    found = space_column(space, "action")
    assert (found.dtype, found.shape) == ("float32", (2,))
    assert (found.low, found.high) == ((-1.0, -2.0), (1.0, 2.0))


def test_discrete_actions_have_their_number() -> None:
    found = space_column(spaces.Discrete(5), "action")
    assert found == Column("int64")
    assert found.n == 5


def test_multi_discrete_actions_have_bounds_for_each_element() -> None:
    found = space_column(spaces.MultiDiscrete([3, 4]), "action")
    assert found == Column("int64", (2,))
    assert (found.low, found.high) == ((0.0, 0.0), (2.0, 3.0))


def test_multi_binary_values_are_int8_with_two_values() -> None:
    found = space_column(spaces.MultiBinary(6), "observation")
    assert found == Column("int8", (6,))
    assert found.n == 2


@pytest.mark.parametrize(
    "space",
    [spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 2], start=[0, 1])],
    ids=["discrete", "multi"],
)
def test_discrete_values_must_begin_at_zero(space: spaces.Space) -> None:
    with pytest.raises(UnsoundError, match=r"^actions are discrete and begin at .*; .*begin at 0$"):
        space_column(space, "action")


def test_nested_actions_are_refused_with_a_hint() -> None:
    with pytest.raises(
        UnsoundError, match=r"actions are a Dict space, .*; wrap the env so that its act"
    ):
        space_column(spaces.Dict({"a": spaces.Discrete(2)}), "action")


def test_the_leaves_of_nested_observations_are_named_by_their_path() -> None:
    inner = spaces.Dict({"pos": spaces.Box(-1, 1, (2,), np.float64), "on": spaces.MultiBinary(3)})
    pair = spaces.Tuple([spaces.Discrete(4), spaces.Box(0, 255, (5, 5, 3), np.uint8)])
    found = observation_columns(spaces.Dict({"robot": inner, "seen": pair}))
    assert isinstance(found, NestedColumns)
    assert found.columns == {
        "robot/on": Column("int8", (3,)),
        "robot/pos": Column("float32", (2,)),
        "seen/0": Column("int64"),
        "seen/1": Column("uint8", (5, 5, 3)),
    }
    assert found.columns["seen/0"].n == 4
    assert found.dtype.itemsize == 3 + 8 + 8 + 75


@pytest.mark.parametrize(
    ("space", "what"),
    [
        (spaces.Dict({"a/b": spaces.Discrete(2)}), r"have the key 'a/b'; a key is not empty and"),
        (spaces.Dict({"": spaces.Discrete(2)}), "have the key ''"),
        (spaces.Dict({}), "observations are an empty space"),
        (
            spaces.Dict({"a": spaces.Tuple([spaces.Text(3)])}),
            r"'a/0': observations are a Text space, which is not supported; .* a Dict or Tuple of",
        ),
    ],
)
def test_nested_observations_that_cannot_be_columns_are_refused(
    space: spaces.Space, what: str
) -> None:
    with pytest.raises(UnsoundError, match=what):
        observation_columns(space)


def test_a_subclass_of_a_space_counts_as_that_space() -> None:
    class CustomDiscrete(spaces.Discrete):
        pass

    assert space_column(CustomDiscrete(2), "action").n == 2


def test_the_error_of_a_missing_env_has_an_example() -> None:
    with pytest.raises(UnsoundError, match=r"no env is given; write `env: \{id: CartPole-v1\}`"):
        env_columns(None)


def test_an_error_of_a_constructor_makes_the_graph_unsound() -> None:
    class Raises:
        def spec(self) -> None:
            raise RuntimeError("no display")

    with pytest.raises(
        UnsoundError, match="the env cannot be made: RuntimeError: no display"
    ) as raised:
        env_columns(Raises())
    assert raised.value.key == "env"
