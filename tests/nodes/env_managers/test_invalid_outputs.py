"""Outputs of envs that violate their spaces or gymnasium's interface are errors that say how."""

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


def error_text(kind: str, cls: str, **params: Any) -> str:
    """The text of the error that an env of this class causes."""
    with open_manager(kind, f"{ENVS}:{cls}", count=2, **params) as envs:
        with pytest.raises(EnvError) as raised:
            begin_and_step(envs)
        assert (raised.value.index, envs.failures.failures) == (0, 1)
        assert envs.failures.replaced_workers == 0
        return str(raised.value)


def begin_and_step(envs: Any) -> Any:
    """Reset all envs and step them once."""
    envs.reset()
    return envs.advance(np.zeros(2, np.int64))


@kinds
def test_valid_outputs_are_accepted(kind: str) -> None:
    for cls, params in {"ValidEnv": {}, "FixedBits": {"value": 1, "dtype": "int64"}}.items():
        with open_manager(kind, f"{ENVS}:{cls}", count=2, **params) as envs:
            assert begin_and_step(envs).obs.shape == (2, 2)


@kinds
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("huge", r"1e\+300"),
        ("endless", "1000+...0+"),
        ("text", "'1.0'"),
        ("none", "None"),
        ("pair", r"\[1.0, 2.0\]"),
    ],
)
def test_a_reward_must_be_a_finite_number_in_single_precision(
    kind: str, what: str, message: str
) -> None:
    expected = f"the reward is {message}; it must be a finite number, also in single precision"
    assert_matches(expected, error_text(kind, "InvalidReward", what=what))


@kinds
@pytest.mark.parametrize("flag", ["terminated", "truncated"])
@pytest.mark.parametrize(
    ("what", "shown"), [("none", "None"), ("text", "'no'"), ("nan", "nan"), ("two", r"array\(.*\)")]
)
def test_the_end_of_an_episode_must_be_true_or_false(
    kind: str, flag: str, what: str, shown: str
) -> None:
    message = error_text(kind, "InvalidEnd", what=what, truncated=flag == "truncated")
    assert_matches(f"step 1: {flag} is {shown}; it must be true or false", message)


@kinds
def test_booleans_and_single_numbers_of_numpy_say_whether_an_episode_has_ended(kind: str) -> None:
    with open_manager(kind, f"{ENVS}:NumpyEnd", count=2) as envs:
        envs.reset()
        steps = envs.advance(np.array([0, 1]))
        assert steps.terminated.tolist() == steps.truncated.tolist() == [False, True]


@kinds
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("none", r"the observation is None; its space is float32\[2\]"),
        ("ragged", "the observation is no array: .*inhomogeneous"),
        ("objects", r"the observation is array\(.*its space is float32\[2\]"),
        ("complex", r"the observation is complex128\[2\]; its space is float32\[2\]"),
    ],
)
def test_an_observation_must_be_an_array_of_numbers(kind: str, what: str, message: str) -> None:
    assert_matches(message, error_text(kind, "InvalidObservation", what=what))


@kinds
def test_a_discrete_observation_must_be_in_its_space(kind: str) -> None:
    message = error_text(kind, "OutOfRange")
    assert "step 1: the observation is 7; its space allows 0 to 4" in message


@kinds
@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (2, "int8", "its space allows 0 to 1"),
        (-1, "int64", "its space allows 0 to 1"),
        (300, "int64", r"which is out of range for int8\[2\]"),
    ],
)
def test_integers_outside_of_the_space_are_refused_and_never_wrapped(
    kind: str, value: int, dtype: str, message: str
) -> None:
    assert_matches(
        rf"the observation is \[\s*{value}\s+0\].* {message}",
        error_text(kind, "FixedBits", value=value, dtype=dtype),
    )


@kinds
def test_whole_numbers_of_another_type_are_taken_if_the_space_has_them(kind: str) -> None:
    with open_manager(kind, f"{ENVS}:Bytes", count=1, value=255) as envs:
        assert envs.reset().tolist() == [[0, 1]]
        assert envs.advance(np.zeros(1, np.int64)).next_obs.tolist() == [[255, 1]]
    for value in (256, -1):
        message = rf"\[\s*{value} +1\], which is out of range for uint8\[2\]; correct what the env"
        assert_matches(message, error_text(kind, "Bytes", value=value))


@kinds
@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "unprintable",
            r"step raised UnprintableError: \(no text: formatting the error raised ValueError\)",
        ),
        ("a name", r"step raised OSError: no file (\\udc80|\udc80)"),
    ],
)
def test_an_error_without_a_valid_text_is_reported_too(kind: str, what: str, message: str) -> None:
    assert_matches(message, error_text(kind, "RaisingEnv", what=what))


@kinds
@pytest.mark.parametrize(
    ("cls", "message"),
    [
        ("FourResults", r"a step returns \(observation, reward, terminated, truncated, info\)"),
        ("OneResult", r"a reset returns \(observation, info\)"),
        ("NoSeed", "unexpected keyword argument 'seed'; a reset takes a seed"),
    ],
)
def test_an_env_of_the_old_gym_interface_gets_a_hint(kind: str, cls: str, message: str) -> None:
    assert_matches(message + OLD_GYM, error_text(kind, cls))


@kinds
def test_an_unpacking_error_inside_of_an_env_gets_no_hint(kind: str) -> None:
    message = error_text(kind, "UnpackingMistake")
    assert "too many values to unpack (expected 2)" in message
    assert "old gym" not in message


def assert_matches(expected: str, text: str) -> None:
    assert re.search(expected, text), text
