"""Nodes that sleep instead of computing, so that the network and the engine are measured, and not the cores."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from flowrl.core.batch import Batch, Column
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import In, Out, StateIn, StateOut
from flowrl.core.state import State


def noise(nbytes: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(0).standard_normal(nbytes // 4).astype(np.float32)


class SleepingCollector(Node):
    """Sleeps, and gives a token of this size."""

    role = "collector"
    weights = StateIn("weights")
    data = Out("samples")

    class Config(Config):
        sleep_s: float = param(0.0, "in each firing", ge=0)
        token_bytes: int = param(4, "of each token", ge=4)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": {"x": Column("float32")}}, env_steps=1)

    def setup(self) -> None:
        self.x = noise(self.config.token_bytes)

    def fire(self, weights: State) -> Batch:
        time.sleep(self.config.sleep_s)
        self.ctx.count(env_steps=1)
        return Batch({"x": self.x})


class SleepingLearner(Node):
    """Sleeps, and has weights of this size."""

    role = "learner"
    data = In("samples")
    weights = StateOut("weights")

    class Config(Config):
        sleep_s: float = param(0.0, "in each firing", ge=0)
        weights_bytes: int = param(4, "of each version", ge=4)

    def setup(self) -> None:
        self.w = noise(self.config.weights_bytes)

    def fire(self, data: Batch) -> None:
        time.sleep(self.config.sleep_s)
        self.w = self.w * np.float32(0.999)

    def state(self, port: str) -> State:
        return State({"w": self.w.copy()})


class TimedLearner(SleepingLearner):
    """Records the time since its last firing: that of a round."""

    def setup(self) -> None:
        super().setup()
        self.last_s = time.perf_counter()

    def fire(self, data: Batch) -> None:
        super().fire(data)
        now_s = time.perf_counter()
        self.ctx.metrics({"round_s": now_s - self.last_s})
        self.last_s = now_s
