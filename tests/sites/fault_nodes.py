"""Nodes that end badly, each in its own way, at a chosen moment of their lives."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from typing import Literal

from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.node import Node
from flowrl.core.ports import In

How = Literal["raises", "exits", "leaves", "crashes", "hangs", "nothing"]


def fault(how: How) -> None:
    """Go wrong this way."""
    if how == "raises":
        raise RuntimeError("meant to fail")
    if how == "exits":
        raise SystemExit(7)
    if how == "leaves":
        os._exit(7)
    if how == "crashes":
        ctypes.string_at(0)
    while how == "hangs":
        threading.Event().wait()


class Faulty(Node):
    """Works, until it does not."""

    data = In("samples")

    class Config(Config):
        how: How = param("nothing", "how it goes wrong")
        when: Literal["setup", "fire", "close"] = param("fire", "where it goes wrong")
        firing: int = param(2, "the firing in which it does", ge=0)

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


class Sleepy(Node):
    """Sleeps in each firing, so that a run lasts for as long as it is wanted to."""

    data = In("samples")

    class Config(Config):
        sleep_s: float = param(0.001, "how long", ge=0)

    def fire(self, data: Batch) -> None:
        time.sleep(self.config.sleep_s)


class Chatty(Node):
    """Writes more than a small disk holds into its log."""

    data = In("samples")

    def fire(self, data: Batch) -> None:
        self.ctx.log("x" * 4096)
