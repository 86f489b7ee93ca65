"""Nodes that fail in several ways, when they are made, fired or closed."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Literal

from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.node import Node
from flowrl.core.ports import In
from flowrl.runs.snapshot_files import snapshot_folders

How = Literal["raises", "exits", "leaves", "crashes", "hangs", "nothing"]


def fault(how: How) -> None:
    """Fail in this way."""
    if how == "raises":
        raise RuntimeError("meant to fail")
    if how == "exits":
        raise SystemExit(7)
    if how == "leaves":
        os._exit(7)
    if how == "crashes":
        ctypes.string_at(0)
    while how == "hangs":  # Python may miss a signal at the beginning of a wait without an end
        time.sleep(0.01)


class FaultyNode(Node):
    """Fails in the way and at the time of its parameters."""

    data = In("samples")

    class Config(Config):
        how: How = param("nothing", "how it fails")
        when: Literal["setup", "fire", "close"] = param("fire", "where it fails")
        firing: int = param(2, "the firing in which it fails", ge=0)

    def setup(self) -> None:
        self.fired = 0
        if self.config.when == "setup":
            fault(self.config.how)

    def fire(self, data: Batch) -> None:
        self.fired += 1
        if self.config.when == "fire" and self.fired - 1 == self.config.firing:
            os.write(2, b"faulty\n")
            fault(self.config.how)

    def close(self) -> None:
        if self.config.when == "close":
            fault(self.config.how)


class DyingNode(Node):
    """Ends its process, until it has done so often enough. It fires slowly as long as it will."""

    data = In("samples")

    class Config(Config):
        firing: int = param(2, "the first firing in which it may end its process", ge=0)
        times: int = param(1, "how often", ge=0)
        folder: str = param("", "an existing folder, in which it counts how often it has done so")
        run: str = param("", "the folder of a run, of which there must be a snapshot")
        in_setup: bool = param(False, "end the process before the first firing")

    def setup(self) -> None:
        self.fired = 0
        done = len(os.listdir(self.config.folder))
        if self.config.in_setup and done < self.config.times:
            Path(self.config.folder, str(done)).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def fire(self, data: Batch) -> None:
        self.fired += 1
        done = len(os.listdir(self.config.folder))
        if done == self.config.times:
            return
        time.sleep(0.0125)
        is_there = not self.config.run or snapshot_folders(Path(self.config.run))
        if self.fired > self.config.firing and is_there:
            Path(self.config.folder, str(done)).touch()
            os.kill(os.getpid(), signal.SIGKILL)


class SleepingNode(Node):
    """Sleeps in each firing, so that a run takes some time."""

    data = In("samples")

    class Config(Config):
        sleep_s: float = param(0.001, "how long", ge=0)

    def fire(self, data: Batch) -> None:
        time.sleep(self.config.sleep_s)


class VerboseNode(Node):
    """Logs long lines, to fill a small disk."""

    data = In("samples")

    def fire(self, data: Batch) -> None:
        self.ctx.log("x" * 4096)
