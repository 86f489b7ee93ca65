"""Envs that fail in every way that envs do. What they observe says which transition it is."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

MODULUS = 100_003  # of seeds, so that single precision holds what is left of them
STEP_FAULTS = ("raise", "nan", "inf", "shape", "dtype", "reward")
RESET_FAULTS = ("reset raises", "reset nan")
PROCESS_FAULTS = ("exit", "sys.exit", "kill", "segfault")
HANGS = ("hang", "reset hangs")


def observed(seed: int, t: int) -> np.ndarray:
    """What is seen after t steps of the episode with this seed."""
    return np.array([seed % MODULUS, t, (seed * 31 + t * 7) % 997], np.float32)


def reward_of(seed: int, t: int, action: int) -> float:
    """What the t-th step is worth."""
    return float((seed + 3 * t + action) % 11)


def length_of(seed: int) -> int:
    """How long the episode with this seed lasts: 1 to 6 steps."""
    return 1 + seed % 6


class Failing(gymnasium.Env):
    """Fails where its seed says, with some probability, in one of the ways that are named.

    Even seeds terminate and odd ones truncate. `at` fixes the step of each fault.
    """

    def __init__(
        self, faults: Any = (), probability: float = 1.0, at: int | None = None, salt: int = 0
    ) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Discrete(2)
        self.faults, self.probability, self.at, self.salt = tuple(faults), probability, at, salt

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.seed, self.t = seed or 0, 0
        rng = np.random.default_rng((self.seed, self.salt))
        self.fault = ""
        if self.faults and rng.random() < self.probability:
            self.fault = self.faults[rng.integers(len(self.faults))]
        self.when = self.at or int(rng.integers(1, length_of(self.seed) + 1))
        if self.fault == "reset raises":
            raise OSError("no simulator answers")
        if self.fault == "reset hangs":
            hang()
        obs = observed(self.seed, 0)
        return (obs * np.nan if self.fault == "reset nan" else obs), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self.t += 1
        if self.t == self.when and self.fault in FAULTS:
            FAULTS[self.fault]()
        obs, reward = observed(self.seed, self.t), reward_of(self.seed, self.t, int(action))
        if self.t == self.when:
            obs = {
                "nan": obs * np.nan,
                "inf": obs * np.inf,
                "shape": obs[:1],
                "dtype": np.array(["a", "b", "c"]),
            }.get(self.fault, obs)
            reward = float("nan") if self.fault == "reward" else reward
        over = self.t >= length_of(self.seed)
        final = self.seed % 2 == 0
        return obs, reward, over and final, over and not final, {}


def hang() -> None:
    """Until somebody ends it."""
    threading.Event().wait(60)


def raise_() -> None:
    """As simulators do."""
    raise ZeroDivisionError("the simulator fell over")


FAULTS = {
    "raise": raise_,
    "hang": hang,
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit("enough"),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "flood": lambda: print("x" * (1 << 20), flush=True),
}
