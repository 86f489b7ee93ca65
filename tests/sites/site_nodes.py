"""Nodes for runs on several sites: with varying steps, verdicts, failures, delays and effects."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import ANY, In, Out, StateIn, StateOut
from flowrl.core.state import State
from tests.toys.toy_nodes import TABLE, Evaluator, Learner, Source, table


class VaryingSteps(Node):
    """A collector whose env steps vary and are not known before the run: 1, 2, … 5, 1, …"""

    role = "collector"
    weights = StateIn("weights", optional=True)
    data = Out("samples")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE})

    def setup(self) -> None:
        self.fired = 0

    def fire(self, weights: State | None) -> Batch:
        self.fired += 1
        self.ctx.count(env_steps=1 + (self.fired + self.ctx.replica) % 5, episodes=self.fired % 2)
        return table(self.fired)


class VerdictGiver(Node):
    """Takes any token, and gives a verdict in one firing."""

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


class FailsPeriodically(Node):
    """Fails in every n-th firing of each node that a restart makes."""

    data = In("samples")
    out = Out("samples", optional=True)

    class Config(Config):
        each: int = param(3, "the number of firings between failures", ge=2)

    def setup(self) -> None:
        self.fired = 0
        self.noise = self.ctx.rng("noise")

    def fire(self, data: Batch) -> Batch:
        self.fired += 1
        if self.fired % self.config.each == 0:
            raise RuntimeError(f"failed in firing {self.fired}")
        self.ctx.log(f"{data['n'][0]} {self.noise.random():.3f}")
        return data


class TolerantLearner(Learner):
    """A learner that accepts tokens that are no tables."""

    def fire(self, data: Any) -> str:
        return super().fire(data if isinstance(data, Batch) else table(0))


class TimedSource(Source):
    """A `Source` whose firing takes some time. Its tokens depend on its random stream, and it logs their numbers."""

    class Config(Source.Config):
        each_s: float = param(0.01, "seconds of a firing")
        gate: str = param("", "a file without which nothing is given after 100 tokens")

    def setup(self) -> None:
        super().setup()
        self._rng = self.ctx.rng("tokens")

    def fire(self, weights: State | None) -> list[Batch]:
        super().fire(weights)
        threading.Event().wait(self.config.each_s)
        while self.config.gate and self.given > 100 and not Path(self.config.gate).exists():
            time.sleep(0.01)
        numbers = self._rng.integers(1 << 62, size=self.config.give).tolist()
        self.ctx.log(f"gave {numbers}")
        return [table(number) for number in numbers]


class SlowCollector(Node):
    """A collector that takes 50 ms for each token, and no CPU time."""

    role = "collector"
    data = Out("samples")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=1)

    def fire(self) -> Batch:
        threading.Event().wait(0.05)
        self.ctx.count(env_steps=1)
        return table(0)


class CpuTimeLearner(Learner):
    """A learner that records the CPU time of its thread."""

    def fire(self, data: Batch) -> str:
        self.ctx.metrics({"cpu_s": time.thread_time()})
        return super().fire(data)


class SlowLearner(Learner):
    """A learner that takes 50 ms in each firing, and no CPU time."""

    def fire(self, data: Batch) -> str:
        threading.Event().wait(0.05)
        return super().fire(data)


class RatioBuffer(Node):
    """A buffer that fires on any input. It limits the batches for each token, and gives only requested ones."""

    fires_on = "any"
    data = In("samples")
    priorities = In("priorities", optional=True, initial=lambda: "begin")
    batches = Out("samples", rate="most")

    class Config(Config):
        each: int = param(3, "batches for each token", ge=1)
        most: int = param(2, "batches of a firing", ge=1)

    def setup(self) -> None:
        self.inserted = self.requested = self.given = 0

    def fire(self, data: Batch | None, priorities: Any) -> list[Batch]:
        self.inserted += data is not None
        self.requested += priorities is not None
        room = min(self.config.each * self.inserted - self.given, self.requested, self.config.most)
        self.requested -= room
        self.given += room
        self.ctx.metrics({"inserted": self.inserted, "given": self.given})
        return [table(self.given)] * room


class TooManyTokens(Node):
    """Gives more tokens than its rate allows."""

    fires_on = "any"
    data = In("samples")
    out = Out("samples", rate=2)

    def fire(self, data: Batch | None) -> list[Batch]:
        return [table(0)] * 3


class UnrequestedBuffer(RatioBuffer):
    """Gives the most batches for each token, without requests."""

    def fire(self, data: Batch | None, priorities: Any) -> list[Batch]:
        return [] if data is None else [data] * self.config.most


class ProgressLearner(Learner):
    """A learner that publishes its progress to other nodes of the same process."""

    at: list[int] = [0]
    moved = threading.Condition()

    def fire(self, data: Batch) -> str:
        with ProgressLearner.moved:
            ProgressLearner.at[0] = self.ctx.clock.total.train_iters + 1
            ProgressLearner.moved.notify_all()
        return super().fire(data)


class LateCollector(Node):
    """A collector that waits in its first firing until a `ProgressLearner` has gone some iterations ahead."""

    role = "collector"
    data = Out("samples")

    class Config(Config):
        ahead: int = param(8, "train iterations")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=1)

    def setup(self) -> None:
        self.fired = 0

    def fire(self) -> Batch:
        with ProgressLearner.moved:
            if not ProgressLearner.moved.wait_for(
                lambda: ProgressLearner.at[0] >= self.config.ahead, timeout=60
            ):
                raise RuntimeError(f"the learner did not go on to {self.config.ahead}")
        self.fired += 1
        self.ctx.count(env_steps=1)
        return table(self.fired)


class WaitingEvaluator(Evaluator):
    """An evaluator that waits until the learner is some versions ahead."""

    class Config(Evaluator.Config):
        ahead: int = param(0, "versions")

    def fire(self, weights: State) -> Batch:
        goal = weights.version + self.config.ahead
        with ProgressLearner.moved:
            if not ProgressLearner.moved.wait_for(
                lambda: ProgressLearner.at[0] >= goal, timeout=60
            ):
                raise RuntimeError(f"the learner did not go on to {goal}")
        return super().fire(weights)


class ResultGiver(WaitingEvaluator):
    """An evaluator whose state says which version it has evaluated last."""

    found = StateOut("results", optional=True)

    def setup(self) -> None:
        self.evaluated = 0

    def fire(self, weights: State) -> Batch:
        if self.config.ahead:
            super().fire(weights)
        self.ctx.log(f"saw {weights.version}")
        self.evaluated = weights.version
        return table(weights.version)

    def state(self, port: str) -> State:
        return State({}, {"version": float(self.evaluated)})


class ResultLearner(ProgressLearner):
    """A learner that logs which evaluation it sees, and of which version."""

    found = StateIn("results", optional=True)

    def fire(self, data: Batch, found: State | None) -> str:  # type: ignore[override]
        if found is not None:
            self.ctx.log(f"saw {found.version} {found.command['version']:.0f}")
        return super().fire(data)


class ResultReader(Node):
    """Logs for each token which evaluation it sees."""

    data = In("samples")
    found = StateIn("results")

    def fire(self, data: Batch, found: State) -> None:
        self.ctx.log(f"saw {found.version} {found.command['version']:.0f}")


class FileWriter(Node):
    """Writes a line into its file for each firing that counts, and may fail in one of them."""

    data = In(ANY)

    class Config(Config):
        path: str = param(..., "the file")
        fails_at: int = param(-1, "the firing that cannot write")

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Any) -> None:
        self.ctx.on_commit(partial(self._write, self.fired))
        self.fired += 1

    def _write(self, firing: int) -> None:
        if firing == self.config.fails_at:
            raise OSError("no space left")
        with open(f"{self.config.path}-{self.ctx.replica}", "a") as file:
            file.write(f"{firing}\n")


class NumericsReporter(Node):
    """Records the numerical settings of torch and of its thread."""

    data = In(ANY)

    def setup(self) -> None:
        import torch

        self.torch = torch

    def fire(self, data: Any) -> None:
        torch = self.torch
        tiny = np.array([1e-39], np.float32)
        self.ctx.metrics(
            {
                "threads": torch.get_num_threads(),
                "bytes": torch.zeros(1).element_size(),
                "learns": torch.is_grad_enabled(),
                "exact": torch.get_float32_matmul_precision() == "highest",
                "fast": torch.backends.mkldnn.enabled,
                "tiny": (tiny * np.float32(0.5))[0] > 0,
            }
        )
