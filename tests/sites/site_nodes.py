"""More small nodes: those whose lives differ from site to site, or from firing to firing."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np

from flowrl.core.batch import Batch
from flowrl.core.config import Config, param
from flowrl.core.node import Facts, Node, Surroundings
from flowrl.core.ports import ANY, In, Out, StateIn
from flowrl.core.state import State
from tests.toys.toy_nodes import TABLE, Judge, Learner, table


class Varying(Node):
    """A collector whose env steps are not known before: 1, 2, … 5, 1, …"""

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
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
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


class Band(Node):
    """A buffer that fires on any input: so many batches at most for each token, and only what is asked for."""

    fires_on = "any"
    data = In("samples")
    priorities = In("priorities", optional=True, initial=lambda: "begin")
    batches = Out("samples", rate="most")

    class Config(Config):
        each: int = param(3, "batches for each token", ge=1)
        most: int = param(2, "batches of a firing", ge=1)

    def setup(self) -> None:
        self.inserted = self.asked = self.given = 0

    def fire(self, data: Batch | None, priorities: Any) -> list[Batch]:
        self.inserted += data is not None
        self.asked += priorities is not None
        room = min(self.config.each * self.inserted - self.given, self.asked, self.config.most)
        self.asked -= room
        self.given += room
        self.ctx.metrics({"inserted": self.inserted, "given": self.given})
        return [table(self.given)] * room


class Gushing(Node):
    """Gives more than it may."""

    fires_on = "any"
    data = In("samples")
    out = Out("samples", rate=2)

    def fire(self, data: Batch | None) -> list[Batch]:
        return [table(0)] * 3


class Unasked(Band):
    """Gives as much as it may for each token, and looks at priorities only."""

    def fire(self, data: Batch | None, priorities: Any) -> list[Batch]:
        return [] if data is None else [data] * self.config.most


class Racer(Learner):
    """Tells how far it is to whoever waits for that, in the same process."""

    at: list[int] = [0]
    moved = threading.Condition()

    def fire(self, data: Batch) -> str:
        with Racer.moved:
            Racer.at[0] = self.ctx.clock.total.train_iters + 1
            Racer.moved.notify_all()
        return super().fire(data)


class Watcher(Judge):
    """An evaluation that is not done before the learner is some versions ahead."""

    class Config(Judge.Config):
        ahead: int = param(0, "versions")

    def fire(self, weights: State) -> Batch:
        goal = weights.version + self.config.ahead
        with Racer.moved:
            if not Racer.moved.wait_for(lambda: Racer.at[0] >= goal, timeout=20):
                raise RuntimeError(f"the learner did not go on to {goal}")
        return super().fire(weights)


class Scribe(Node):
    """Writes a line into a file of its own for each firing that counts, and fails in one of them."""

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


class Numerate(Node):
    """Tells how torch and this thread compute."""

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
