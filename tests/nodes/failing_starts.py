"""Envs that cannot be begun, or take their time."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from typing import Any

from tests.nodes.failing_envs import Failing, hang


class Dying(Failing):
    """Ends every worker that makes it."""

    def __init__(self) -> None:
        super().__init__()
        if is_worker():
            print("I cannot live here", flush=True)
            os._exit(7)


class Slow(Failing):
    """An action of 1 takes a while."""

    def step(self, action: Any) -> Any:
        if action:
            time.sleep(0.15)
        return super().step(action)


def is_worker() -> bool:
    """Whether this is a worker's process."""
    spec = sys.modules["__main__"].__spec__
    return spec is not None and spec.name == "flowrl.nodes.env_managers.workers.process"


class WithSimulator(Failing):
    """Each env starts a program beside it, and writes down its number."""

    def __init__(self, pids: str) -> None:
        super().__init__()
        if is_worker():
            simulator = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open(pids, "a") as file:
                file.write(f"{simulator.pid}\n")


class ClosingBadly(Failing):
    """Raises, or hangs, when it is closed after an episode has begun; says on a file that it was."""

    t: int | None = None

    def __init__(self, closed: str, hangs: bool = False) -> None:
        super().__init__()
        self.closed, self.hangs = closed, hangs

    def close(self) -> None:
        if self.t is None:
            return  # it was only made to be looked at
        with open(self.closed, "a") as file:
            file.write("closed\n")
        if self.hangs:
            hang()
        raise RuntimeError("the window is gone")


class Wandering(Failing):
    """Changes the working folder at each step."""

    def step(self, action: Any) -> Any:
        os.chdir("/")
        return super().step(action)


class Chattering(Failing):
    """Prints when it is made and at each step, in Python and below it."""

    def __init__(self) -> None:
        super().__init__()
        self.say()

    def step(self, action: Any) -> Any:
        self.say()
        return super().step(action)

    def say(self) -> None:
        print("hello from Python")
        ctypes.CDLL(None).puts(b"hello from C")
