"""What envs give that their spaces or gymnasium's interface do not allow is refused, and said."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from flowrl.nodes.env_managers.env_error import EnvError
from tests.nodes.env_managers.manager_kinds import open_manager

ENVS = "tests.nodes.env_managers.invalid_envs"
OLD_GYM = r"; envs of the old gym package take `type: gym`"
kinds = pytest.mark.parametrize("kind", ["serial", "sync", "thread"])


def said(kind: str, cls: str, **params: Any) -> str:
    """The error of an env of this class."""
    with open_manager(kind, f"{ENVS}:{cls}", count=2, **params) as envs:
        with pytest.raises(EnvError) as told:
            begin_and_step(envs)
        assert (told.value.index, envs.failures.failures) == (0, 1)
        assert envs.failures.replaced_workers == 0
        return str(told.value)


def begin_and_step(envs: Any) -> Any:
    """The first step of all."""
    envs.reset()
    return envs.advance(np.zeros(2, np.int64))


@kinds
def test_an_env_that_keeps_to_its_interface_is_let_through(kind: str) -> None:
    for cls, params in {"Sound": {}, "Switches": {"value": 1, "dtype": "int64"}}.items():
        with open_manager(kind, f"{ENVS}:{cls}", count=2, **params) as envs:
            assert begin_and_step(envs).obs.shape == (2, 2)


@kinds
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("huge", r"1e\+300"),
        ("endless", "1000+...0+"),
        ("text", "'1.0'"),
        ("none", "None"),
        ("pair", r"\[1.0, 2.0\]"),
    ],
)
def test_a_reward_that_is_no_number_of_single_precision_is_refused(
    kind: str, what: str, told: str
) -> None:
    expected = f"the reward is {told}; it must be a finite number, also in single precision"
    assert_matches(expected, said(kind, "OddReward", what=what))


@kinds
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("none", r"the observation is None; its space is float32\[2\]"),
        ("ragged", "the observation is no array: .*inhomogeneous"),
        ("objects", r"the observation is array\(.*its space is float32\[2\]"),
        ("complex", r"the observation is complex128\[2\]; its space is float32\[2\]"),
    ],
)
def test_an_observation_that_is_no_array_of_numbers_is_refused(
    kind: str, what: str, told: str
) -> None:
    assert_matches(told, said(kind, "OddObservation", what=what))


@kinds
def test_a_choice_that_the_space_does_not_have_is_refused(kind: str) -> None:
    told = said(kind, "OutOfRange")
    assert "step 1: the observation is 7; its space allows 0 to 4" in told


@kinds
@pytest.mark.parametrize(
    ("value", "dtype", "told"),
    [
        (2, "int8", "its space allows 0 to 1"),
        (-1, "int64", "its space allows 0 to 1"),
        (300, "int64", r"which is out of range for int8\[2\]"),
    ],
)
def test_whole_numbers_are_neither_wrapped_round_nor_let_out_of_their_range(
    kind: str, value: int, dtype: str, told: str
) -> None:
    assert_matches(
        rf"the observation is \[\s*{value}\s+0\].* {told}",
        said(kind, "Switches", value=value, dtype=dtype),
    )


@kinds
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("unprintable", r"step raised Unprintable: \(its text cannot be had: ValueError\)"),
        ("a name", r"step raised OSError: no file (\\udc80|\udc80)"),
    ],
)
def test_an_error_whose_text_is_odd_is_told_all_the_same(kind: str, what: str, told: str) -> None:
    assert_matches(told, said(kind, "Raising", what=what))


@kinds
@pytest.mark.parametrize(
    ("cls", "told"),
    [
        ("FourResults", r"a step gives \(observation, reward, terminated, truncated, info\)"),
        ("OneResult", r"a reset gives \(observation, info\)"),
        ("NoSeed", "unexpected keyword argument 'seed'; a reset takes a seed"),
    ],
)
def test_an_env_of_the_old_interface_is_told_its_type(kind: str, cls: str, told: str) -> None:
    assert_matches(told + OLD_GYM, said(kind, cls))


@kinds
def test_an_envs_own_mistake_is_not_taken_for_the_old_interface(kind: str) -> None:
    told = said(kind, "OwnMistake")
    assert "too many values to unpack (expected 2)" in told
    assert "old gym" not in told


def assert_matches(expected: str, told: str) -> None:
    """Whether it was told."""
    assert re.search(expected, told), told
