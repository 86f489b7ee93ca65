"""Envs that break gymnasium's interface, each in one way, in the first step of their first episode."""

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


class Unprintable(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Sound(gymnasium.Env):
    """Nothing is wrong with it."""

    observation_space: Any = Box(-10, 10, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, what: str = "") -> None:
        self.what = what

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        return self.seen(), 1.0, False, False, {}

    def seen(self) -> Any:
        return np.zeros(2, np.float32)


class OddReward(Sound):
    def step(self, action: Any) -> Any:
        return self.seen(), REWARDS[self.what], False, False, {}


class OddObservation(Sound):
    def step(self, action: Any) -> Any:
        return OBSERVATIONS[self.what], 1.0, False, False, {}


class OutOfRange(Sound):
    observation_space = Discrete(5)

    def __init__(self) -> None:
        self.at = 0

    def seen(self) -> Any:
        self.at += 7
        return self.at - 7


class Switches(Sound):
    """Says 0 and 1, and gives what it is told to."""

    observation_space = MultiBinary(2)

    def __init__(self, value: int, dtype: str = "int8") -> None:
        self.given = np.array([value, 0], dtype)

    def step(self, action: Any) -> Any:
        return self.given, 1.0, False, False, {}

    def seen(self) -> Any:
        return np.zeros(2, np.int8)


class Raising(Sound):
    def step(self, action: Any) -> Any:
        raise Unprintable if self.what == "unprintable" else OSError("no file \udc80")


class FourResults(Sound):
    """The step of the old gym package."""

    def step(self, action: Any) -> Any:
        return self.seen(), 1.0, False, {}


class OneResult(Sound):
    """The reset of the old gym package."""

    observation_space = Box(-10, 10, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32)


class NoSeed(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return self.seen(), {}


class OwnMistake(Sound):
    def step(self, action: Any) -> Any:
        one, two = [1, 2, 3]
        return one, two
