"""Envs that fail in every way that envs do. What they observe identifies the transition."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

MODULUS = 100_003  # of seeds, so that single precision holds the remainder
STEP_FAULTS = ("raise", "nan", "inf", "shape", "dtype", "reward")
RESET_FAULTS = ("reset raises", "reset nan")
PROCESS_FAULTS = ("exit", "sys.exit", "kill", "segfault")
HANGS = ("hang", "reset hangs")


def observation_after(seed: int, t: int) -> np.ndarray:
    """The observation after t steps of the episode with this seed."""
    return np.array([seed % MODULUS, t, (seed * 31 + t * 7) % 997], np.float32)


def reward_of(seed: int, t: int, action: int) -> float:
    """The reward of step t."""
    return float((seed + 3 * t + action) % 11)


def length_of(seed: int) -> int:
    """The length of the episode with this seed: 1 to 6 steps."""
    return 1 + seed % 6


class FaultyEnv(gymnasium.Env):
    """Fails with some probability, decided by the seed, in one of the given ways.

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
        self.fault_step = self.at or int(rng.integers(1, length_of(self.seed) + 1))
        if self.fault == "reset raises":
            raise OSError("no simulator answers")
        if self.fault == "reset hangs":
            hang()
        obs = observation_after(self.seed, 0)
        return (obs * np.nan if self.fault == "reset nan" else obs), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict]:
        self.t += 1
        if self.t == self.fault_step and self.fault in FAULTS:
            FAULTS[self.fault]()
        obs, reward = (
            observation_after(self.seed, self.t),
            reward_of(self.seed, self.t, int(action)),
        )
        if self.t == self.fault_step:
            obs = {
                "nan": obs * np.nan,
                "inf": obs * np.inf,
                "shape": obs[:1],
                "dtype": np.array(["a", "b", "c"]),
            }.get(self.fault, obs)
            reward = float("nan") if self.fault == "reward" else reward
        over = self.t >= length_of(self.seed)
        terminates = self.seed % 2 == 0
        return obs, reward, over and terminates, over and not terminates, {}


def hang() -> None:
    threading.Event().wait(60)


def raise_error() -> None:
    raise ZeroDivisionError("the simulator fell over")


def interrupt() -> None:
    raise KeyboardInterrupt("the simulator handles keys")


FAULTS = {
    "interrupt": interrupt,
    "raise": raise_error,
    "hang": hang,
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit("enough"),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
    "flood": lambda: print("x" * (1 << 20), flush=True),
}


def is_worker() -> bool:
    """Whether this is a worker process."""
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name == "flowrl.nodes.env_managers.workers.process"


class CrashingEnv(FaultyEnv):
    """Ends every worker process that makes it."""

    def __init__(self) -> None:
        super().__init__()
        if is_worker():
            print("I cannot live here", flush=True)
            os._exit(7)


class SlowEnv(FaultyEnv):
    """Takes a while for the action 1."""

    def step(self, action: Any) -> Any:
        if action:
            time.sleep(0.15)
        return super().step(action)


class EnvWithSimulator(FaultyEnv):
    """Starts a child process when it is made, and appends its pid to a file."""

    def __init__(self, pids: str) -> None:
        super().__init__()
        if is_worker():
            simulator = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open(pids, "a") as file:
                file.write(f"{simulator.pid}\n")


class EnvInterruptingClose(FaultyEnv):
    """Raises in `close` what Ctrl-C raises."""

    def close(self) -> None:
        interrupt()


class EnvFailingToClose(FaultyEnv):
    """Raises, or hangs, when it is closed after an episode has begun; appends to a file that it was closed."""

    t: int | None = None

    def __init__(self, closed: str, hangs: bool = False) -> None:
        super().__init__()
        self.closed, self.hangs = closed, hangs

    def close(self) -> None:
        if self.t is None:
            return  # it was only made to find its spaces
        with open(self.closed, "a") as file:
            file.write("closed\n")
        if self.hangs:
            hang()
        raise RuntimeError("the window is gone")


class FolderChangingEnv(FaultyEnv):
    """Changes the working directory at each step."""

    def step(self, action: Any) -> Any:
        os.chdir("/")
        return super().step(action)


class PrintingEnv(FaultyEnv):
    """Prints when it is made and at each step, from Python and from C."""

    def __init__(self) -> None:
        super().__init__()
        self.print_lines()

    def step(self, action: Any) -> Any:
        self.print_lines()
        return super().step(action)

    def print_lines(self) -> None:
        print("hello from Python")
        ctypes.CDLL(None).puts(b"hello from C")
