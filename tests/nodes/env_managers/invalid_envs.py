"""Envs that violate gymnasium's interface, each in one way, in the first step of their first episode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary

REWARDS = {"huge": 1e300, "endless": 10**400, "text": "1.0", "none": None, "pair": [1.0, 2.0]}
OBSERVATIONS = {
    "none": None,
    "ragged": [1, [2, 3]],
    "objects": np.array([object(), 1], object),
    "complex": np.array([1 + 2j, 0]),
}


ENDS = {"none": None, "text": "no", "nan": float("nan"), "two": np.zeros(2, np.bool_)}


class UnprintableError(Exception):
    """Formatting it raises another error."""

    def __str__(self) -> str:
        raise ValueError("no words")


class ValidEnv(gymnasium.Env):
    """Keeps to the interface."""

    observation_space: Any = Box(-10, 10, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, what: str = "") -> None:
        self.what = what

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        return self.observe(), 1.0, False, False, {}

    def observe(self) -> Any:
        return np.zeros(2, np.float32)


class InvalidReward(ValidEnv):
    def step(self, action: Any) -> Any:
        return self.observe(), REWARDS[self.what], False, False, {}


class InvalidEnd(ValidEnv):
    """Says with an invalid value whether its episode has terminated, or with `truncated` whether it is truncated."""

    def __init__(self, what: str, truncated: bool = False) -> None:
        super().__init__(what)
        self.truncated = truncated

    def step(self, action: Any) -> Any:
        ends = (False, ENDS[self.what]) if self.truncated else (ENDS[self.what], False)
        return self.observe(), 1.0, *ends, {}


class NumpyEnd(ValidEnv):
    """Says with a boolean of numpy, or an array of one number, that its episode goes on, or that it has ended."""

    def step(self, action: Any) -> Any:
        has_ended = bool(action)
        return self.observe(), 1.0, np.bool_(has_ended), np.array([int(has_ended)]), {}


class InvalidObservation(ValidEnv):
    def step(self, action: Any) -> Any:
        return OBSERVATIONS[self.what], 1.0, False, False, {}


class OutOfRange(ValidEnv):
    observation_space = Discrete(5)

    def __init__(self) -> None:
        self.value = 0

    def observe(self) -> Any:
        self.value += 7
        return self.value - 7


class Bytes(ValidEnv):
    """Observations are uint8, and are given as a list of whole numbers."""

    observation_space = Box(0, 255, (2,), np.uint8)

    def __init__(self, value: int) -> None:
        self.value = value

    def step(self, action: Any) -> Any:
        return [self.value, 1], 1.0, False, False, {}

    def observe(self) -> Any:
        return [0, 1]


class FixedBits(ValidEnv):
    """Each step returns the same two values."""

    observation_space = MultiBinary(2)

    def __init__(self, value: int, dtype: str = "int8") -> None:
        self.values = np.array([value, 0], dtype)

    def step(self, action: Any) -> Any:
        return self.values, 1.0, False, False, {}

    def observe(self) -> Any:
        return np.zeros(2, np.int8)


class RaisingEnv(ValidEnv):
    def step(self, action: Any) -> Any:
        raise UnprintableError if self.what == "unprintable" else OSError("no file \udc80")


class FourResults(ValidEnv):
    """A step as in the old gym package."""

    def step(self, action: Any) -> Any:
        return self.observe(), 1.0, False, {}


class OneResult(ValidEnv):
    """A reset as in the old gym package."""

    observation_space = Box(-10, 10, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32)


class NoSeed(ValidEnv):
    def reset(self) -> Any:  # type: ignore[override]
        return self.observe(), {}


class UnpackingMistake(ValidEnv):
    """The step itself unpacks a wrong number of values."""

    def step(self, action: Any) -> Any:
        one, two = [1, 2, 3]
        return one, two
