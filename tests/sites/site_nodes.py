"""More small nodes: those whose lives differ from site to site, or from firing to firing."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from flowrl.batch import Batch
from flowrl.config import Config, param
from flowrl.node import Facts, Known, Node
from flowrl.ports import ANY, In, Out, StateIn
from flowrl.state import State
from tests.engine.toy_nodes import TABLE, Learner, table


class Varying(Node):
    """A collector whose env steps are not known before: 1, 2, … 5, 1, …"""

    role = "collector"
    weights = StateIn("weights", optional=True)
    data = Out("samples")

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        return Facts(outs={"data": TABLE})

    def setup(self) -> None:
        self.fired = 0

    def fire(self, weights: State | None) -> Batch:
        self.fired += 1
        self.ctx.count(env_steps=1 + (self.fired + self.ctx.replica) % 5, episodes=self.fired % 2)
        return table(self.fired)


class Critic(Node):
    """Anything that comes in may be its reason for a verdict: it gives one in the firing that it is told."""

    data = In(ANY)
    out = Out("samples", optional=True)

    class Config(Config):
        firing: int = param(0, "the firing that gives a verdict", ge=0)

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Any) -> Batch:
        self.ctx.log(f"sees {data}" if isinstance(data, str) else "sees a batch")
        self.ctx.metrics({"fired": self.fired})
        self.fired += 1
        if self.fired - 1 == self.config.firing:
            self.ctx.verdict(f"{self.ctx.key} has seen {self.fired}")
        return table(self.fired)


class Shaky(Node):
    """Fails in every firing whose number is a multiple, once for each life."""

    data = In("samples")
    out = Out("samples", optional=True)

    class Config(Config):
        each: int = param(3, "fails in each so-many-th firing", ge=2)

    def setup(self) -> None:
        self.fired = 0
        self.noise = self.ctx.rng("noise")

    def fire(self, data: Batch) -> Batch:
        self.fired += 1
        if self.fired % self.config.each == 0:
            raise RuntimeError(f"shaken in firing {self.fired}")
        self.ctx.log(f"{data['n'][0]} {self.noise.random():.3f}")
        return data


class Student(Learner):
    """A learner that is asked for its state as often as anybody likes."""

    def fire(self, data: Any) -> str:
        return super().fire(data if isinstance(data, Batch) else table(0))


class Slow(Node):
    """Burns so much CPU in each firing, and hands its token on."""

    data = In("samples")
    out = Out("samples", optional=True)

    class Config(Config):
        work: int = param(1000, "how much it does", ge=0)

    def fire(self, data: Batch) -> Batch:
        np.sort(np.arange(self.config.work)[::-1])
        return data


class Dripping(Node):
    """A collector that gives a token now and then."""

    role = "collector"
    data = Out("samples")

    @classmethod
    def describe(cls, config: Any, known: Known) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=1)

    def fire(self) -> Batch:
        threading.Event().wait(0.05)
        self.ctx.count(env_steps=1)
        return table(0)


class Timed(Learner):
    """Tells how much CPU its thread has used."""

    def fire(self, data: Batch) -> str:
        self.ctx.metrics({"cpu_s": time.thread_time()})
        return super().fire(data)


class Sleepy(Learner):
    """Is slow, and uses no CPU for that."""

    def fire(self, data: Batch) -> str:
        threading.Event().wait(0.05)
        return super().fire(data)
