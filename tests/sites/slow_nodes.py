"""Nodes that take a known time or hang, so that the waits of other nodes are known."""

from __future__ import annotations

import threading
from time import sleep
from typing import Any

from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Load, Node
from flowrl.core.ports import In, Link, Out, Service, StateIn
from flowrl.core.state import State
from tests.toys.toy_nodes import TABLE, table


class TimedCollector(Node):
    """A collector that takes some time for each token, and may hang in one firing."""

    role = "collector"
    weights = StateIn("weights", optional=True)
    data = Out("samples")

    class Config(Config):
        each_s: float = param(0.0, "how long a firing takes", ge=0)
        hangs_in: int = param(-1, "the firing that hangs; -1: none")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=1)

    def setup(self) -> None:
        self.fired = 0

    def fire(self, weights: State | None) -> Batch:
        take_time(self.config.each_s, self.fired == self.config.hangs_in)
        self.fired += 1
        self.ctx.count(env_steps=1)
        return table(self.fired)


class TimedNode(Node):
    """Takes some time for each token, and may hang in one firing."""

    data = In("samples")
    out = Out("samples", optional=True)

    class Config(Config):
        each_s: float = param(0.0, "how long a firing takes", ge=0)
        hangs_in: int = param(-1, "the firing that hangs; -1: none")

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Batch) -> Batch:
        take_time(self.config.each_s, self.fired == self.config.hangs_in)
        self.fired += 1
        return data


HANGS_S = 6.0
GATE = threading.Event()  # ends the hanging of nodes in this process


class SlowToMake(TimedNode):
    """A node that is not made before a test sets the gate."""

    def setup(self) -> None:
        super().setup()
        take_time(0.0, hangs=True)


def take_time(s: float, hangs: bool) -> None:
    """Sleep, or hang until a test sets the gate. In other processes hanging ends after `HANGS_S`."""
    if hangs:
        GATE.wait(HANGS_S)
    sleep(s)


class TimedService(Node):
    """A service whose calls take some time."""

    serve = Service("slowness", methods=("work",))

    class Config(Config):
        each_s: float = param(0.0, "how long a call takes", ge=0)

    @classmethod
    def remedy(cls, config: Any, load: Load) -> str:
        return (
            f"let it work less than {1000 * config.each_s:.0f} ms"
            if load.each_s > 0.9 * config.each_s
            else ""
        )

    def work(self) -> int:
        take_time(self.config.each_s, False)
        return 1


class RelayingService(Node):
    """A service that calls another one."""

    inner = Link("slowness")
    serve = Service("slowness", methods=("work",))

    def work(self) -> int:
        return int(self.inner.work())


class TimedCaller(Node):
    """A collector that calls its service some times in each firing, and thinks in between."""

    role = "collector"
    serve = Link("slowness")
    data = Out("samples")

    class Config(Config):
        calls: int = param(1, "calls in each firing", ge=1)
        part_s: float = param(0.0, "how long it thinks in each firing", ge=0)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=1)

    def fire(self) -> Batch:
        self.ctx.count(env_steps=1)
        self.ctx.timed("thinking", take_time)(self.config.part_s, False)
        return table(sum(self.serve.work() for _ in range(self.config.calls)))
