"""Small nodes for tests of the engine. They log the tokens and versions that they read."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import ANY, In, Link, Out, Service, StateIn, StateOut
from flowrl.core.state import State

TABLE = {"n": Column("int64")}


def table(*numbers: int) -> Batch:
    """Return a token whose rows are these numbers."""
    return Batch({"n": np.array(numbers, np.int64)})


def shown(token: Any) -> str:
    """Format a token, or a list of tokens, for a log."""
    if isinstance(token, list):
        return "[" + " | ".join(map(shown, token)) + "]"
    return ",".join(map(str, token["n"])) if isinstance(token, Batch) else str(token)


class Source(Node):
    """A collector. Token k of replica r is the number 100 r + k; one firing is `steps` env steps."""

    role = "collector"
    weights = StateIn("weights", optional=True)
    data = Out("samples", rate="give")

    class Config(Config):
        give: int = param(1, "tokens in each firing", ge=1)
        steps: int = param(10, "env steps of a firing", ge=0)
        mode: str = param("usual", "a word that it logs", phase=True)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=config.steps)

    def setup(self) -> None:
        self.given = 0
        self.mode = self.config.mode

    def reconfigure(self, mode: str) -> None:
        self.mode = mode
        self.ctx.records.clear()

    def fire(self, weights: State | None) -> list[Batch]:
        saw = "" if weights is None else f" saw {weights.version}"
        self.ctx.log(f"{self.mode}{saw}")
        self.ctx.count(env_steps=self.config.steps, episodes=1)
        give = range(self.given, self.given + self.config.give)
        self.given += self.config.give
        return [table(100 * self.ctx.replica + k) for k in give]


class ReadingSource(Source):
    """A source that logs the numbers of the weights that it reads."""

    def fire(self, weights: State | None) -> list[Batch]:
        self.ctx.log("" if weights is None else str(weights.arrays["sum"].tolist()))
        return super().fire(weights)


class Relay(Node):
    """Passes its token on."""

    data = In("samples")
    out = Out("samples")

    def fire(self, data: Batch) -> Batch:
        self.ctx.log(shown(data))
        return data


class RateChanger(Node):
    """Takes some tokens and gives some tokens, each of which is the sum of the taken ones."""

    data = In("samples", rate="take")
    out = Out("samples", rate="give")

    class Config(Config):
        take: int = param(1, "tokens in each firing", ge=1)
        give: int = param(1, "tokens in each firing", ge=1)

    def fire(self, data: list[Batch]) -> list[Batch]:
        self.ctx.log(shown(data))
        total = sum(int(token["n"].sum()) for token in data)
        return [table(total)] * self.config.give


class Join(Node):
    """Takes a token from each of two inputs."""

    left = In("samples")
    right = In("samples")
    out = Out("samples", optional=True)

    def fire(self, left: Batch, right: Batch) -> Batch:
        self.ctx.log(f"{shown(left)} and {shown(right)}")
        return left


class Split(Node):
    """Passes its token on to two outputs."""

    data = In("samples")
    left = Out("samples")
    right = Out("samples", optional=True)

    def fire(self, data: Batch) -> dict[str, Batch]:
        self.ctx.log(" ".join(sorted(p for p in ("left", "right") if self.ctx.is_consumed(p))))
        return {"left": data, "right": data}


class Drain(Node):
    """Takes a token, and logs the token or its clock."""

    data = In(ANY)

    class Config(Config):
        clock: bool = param(False, "log the clock's total instead of the token")

    def fire(self, data: Any) -> None:
        self.ctx.log(shown(data) if not self.config.clock else str(tuple(self.ctx.clock.total)))


class Buffer(Node):
    """Gives its token `updates` times. Priorities close a feedback loop."""

    data = In("samples")
    priorities = In("priorities", rate="auto", optional=True, initial=lambda: "begin")
    batches = Out("samples", rate="updates")

    class Config(Config):
        updates: int = param(1, "batches for each token", ge=1)

    def fire(self, data: Batch, priorities: list[Any] | None) -> list[Batch]:
        after = "" if priorities is None else f" after {shown(priorities)}"
        self.ctx.log(
            f"{shown(data)}{after}{'' if self.ctx.is_consumed('batches') else ' unwanted'}"
        )
        return [data] * self.config.updates if self.ctx.is_consumed("batches") else []


class Learner(Node):
    """A learner whose weights depend on the order of its tokens. It records which versions are copied."""

    role = "learner"
    unsaved = ("copied",)
    data = In("samples")
    weights = StateOut("weights", optional=True)
    priorities = Out("priorities", optional=True)

    class Config(Config):
        stops_at: int | None = param(None, "the firing that gives a verdict")

    def setup(self) -> None:
        self.sum = np.zeros(2)
        self.copied: list[int] = []
        self.noise = self.ctx.rng("noise")

    def fire(self, data: Batch) -> str:
        self.ctx.log(shown(data))
        self.sum = 0.5 * self.sum + [data["n"].sum(), self.noise.random()]
        if self.ctx.clock.total.train_iters == self.config.stops_at:
            self.ctx.verdict("the learner has had enough")
        return f"p{shown(data)}"

    def state(self, port: str) -> State:
        self.copied.append(int(self.ctx.clock.total.train_iters))
        return State({"sum": self.sum.copy()}, {"half": 0.5})


class Widener(Node):
    """Gives a token of seven rows, which are numbers from that of its token on."""

    data = In("samples")
    out = Out("samples")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"out": TABLE}, rows={"out": 7})

    def fire(self, data: Batch) -> Batch:
        return table(*range(int(data["n"][0]), int(data["n"][0]) + 7))


class GroupLearner(Node):
    """A learner whose replicas form a group. Its weights depend on the order in which numbers are added."""

    role = "learner"
    replicas_form_group = True
    data = In("samples")
    weights = StateOut("weights", optional=True)
    priorities = Out("priorities", optional=True)

    class Config(Config):
        fails_at: int | None = param(None, "the firing in which replica 1 fails")
        stops_at: int | None = param(None, "the firing that gives a verdict")

    def setup(self) -> None:
        self.sum = np.zeros(9_001)  # large enough to be added in pieces
        self.noise = self.ctx.rng("noise")
        self.fired = 0

    def fire(self, data: Batch) -> Batch:
        group = self.ctx.group
        own = data["n"].sum() * self.noise.random(len(self.sum))
        if self.fired == self.config.fails_at and group is not None and group.replica == 1:
            raise ValueError("replica 1 has had enough")
        self.fired += 1
        rows = [shown(data)] if group is None else group.gather(shown(data))
        total = own if group is None else group.sum(own)
        self.ctx.log(" + ".join(rows))
        self.ctx.metrics({"progress": self.ctx.clock.total.env_steps})
        self.sum = 0.5 * self.sum + total
        if self.fired == self.config.stops_at:
            self.ctx.verdict("the group has had enough")
        return data

    def state(self, port: str) -> State:
        return State({"sum": self.sum.copy()}, {"steps": self.ctx.clock.total.env_steps})


class Evaluator(Node):
    """An evaluator that logs the version that it reads. Its goal is a version."""

    role = "evaluator"
    weights = StateIn("weights")
    data = Out("samples", optional=True)

    class Config(Config):
        goal: int | None = param(None, "the version at which the run has reached its goal")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE})

    def fire(self, weights: State) -> Batch:
        self.ctx.log(f"saw {weights.version}")
        self.ctx.metrics({"return_mean": float(weights.version)})
        self.ctx.save_checkpoint("best", weights, eval_return=float(weights.version))
        if self.config.goal is not None and weights.version >= self.config.goal:
            self.ctx.verdict(f"version {weights.version} is good")
        return table(weights.version)


class StateFollower(Node):
    """Takes a stream and a state, and logs both."""

    data = In("samples")
    weights = StateIn("weights")

    def fire(self, data: Batch, weights: State) -> None:
        self.ctx.log(f"{shown(data)} saw {weights.version} ({weights.arrays['sum'][0]:g})")


class RandomLogger(Node):
    """Logs a random number for each token."""

    data = In("samples")

    def setup(self) -> None:
        self.rng = self.ctx.rng("dice")

    def fire(self, data: Batch) -> None:
        self.ctx.log(str(self.rng.integers(10**9)))


class CountingService(Node):
    """A service that returns how often it was called."""

    counter = Service("counter", methods=("next_number",))
    open_ids: list[int] = []  # the ids of the instances that are not closed

    def setup(self) -> None:
        self.calls = 0
        CountingService.open_ids.append(id(self))

    def next_number(self) -> int:
        self.calls += 1
        return self.calls

    def close(self) -> None:
        CountingService.open_ids.remove(id(self))


class UnusedService(Node):
    """A service without clients."""

    unused = Service("unused", methods=(), optional=True)


class ServiceCaller(Node):
    """A collector that calls a counting service, and fails in a third call after the listed numbers of restarts."""

    role = "collector"
    counter = Link("counter")
    data = Out("samples")

    class Config(Config):
        fails_after: list[int] = param([], "numbers of restarts after which the third call fails")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=1)

    def fire(self) -> Batch:
        number = self.counter.next_number()
        self.ctx.count(env_steps=1)
        if self.ctx.restarts in self.config.fails_after and number == 3:
            self.ctx.log("a line that is discarded")
            raise RuntimeError(f"failed in call {number}")
        return table(number)


class FailingNode(Node):
    """Fails when its parameters say so."""

    data = In("samples")
    out = Out("samples", optional=True)
    closed: list[str] = []

    class Config(Config):
        making: bool = param(False, "fail while it is made")
        firing: int = param(-1, "fail in this firing")
        closing: bool = param(False, "fail while it is closed")
        leaving: bool = param(False, "call sys.exit(0) instead of raising")

    def setup(self) -> None:
        self.fired = 0
        if self.config.making:
            raise RuntimeError("cannot be made")

    def fire(self, data: Batch) -> Batch:
        self.fired += 1
        if self.fired - 1 == self.config.firing:
            self.ctx.log("about to fail")
            if self.config.leaving:
                raise SystemExit(0)
            raise ZeroDivisionError("no more")
        return data

    def close(self) -> None:
        FailingNode.closed.append(self.ctx.key)
        if self.config.closing:
            raise OSError("cannot be closed")


class WrongColumns(Node):
    """Declares the columns `n` and `x`, and gives the table that its parameter names."""

    data = In("samples")
    out = Out("samples")

    class Config(Config):
        gives: str = param("truth", "which result it gives")

    GIVES: Any = {
        "truth": {"n": np.arange(2), "x": np.zeros((2, 3), np.float32)},
        "too little": {"n": np.arange(2)},
        "too much": {"n": np.arange(2), "x": np.zeros((2, 3), np.float32), "y": np.zeros(2)},
        "dtype": {"n": np.arange(2), "x": np.zeros((2, 3))},
        "shape": {"n": np.arange(2), "x": np.zeros((2, 4), np.float32)},
    }

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"out": {**TABLE, "x": Column("float32", (3,))}})

    def fire(self, data: Batch) -> Any:
        return Batch(self.GIVES[self.config.gives]) if self.config.gives in self.GIVES else None


class TwoOutputs(Node):
    """Declares two outputs, the second with two tokens, and gives the result that its parameter names."""

    data = In("samples")
    one = Out("samples")
    two = Out("samples", rate=2)

    class Config(Config):
        gives: str = param("truth", "which result it gives")

    def fire(self, data: Batch) -> Any:
        return {
            "truth": {"one": data, "two": [data, data]},
            "nothing": None,
            "missing": {"one": data},
            "unknown": {"one": data, "two": [data, data], "three": data},
            "too few": {"one": data, "two": [data]},
            "no list": {"one": data, "two": data},
        }[self.config.gives]


class LearnerWithoutState(Learner):
    """A learner that fails to return its weights."""

    def state(self, port: str) -> State:
        raise LookupError("weights are lost")


class SharedStateLearner(Learner):
    """A learner that returns its weights without a copy, and then writes to them."""

    def fire(self, data: Batch) -> str:
        self.sum += 1.0
        return ""

    def state(self, port: str) -> State:
        return State({"sum": self.sum})


@flowrl.as_node
def double(data: Batch, *, times: int = 2) -> Batch:
    """A stateless node."""
    return data.replace(n=data["n"] * times)


class NotReconfigurable(Node):
    """Declares a setting of phases, and does not define `reconfigure`."""

    data = Out("samples")

    class Config(Config):
        mode: str = param("usual", "what a phase would set", phase=True)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE})

    def fire(self) -> Batch:
        return table(0)


class BufferWithoutInitialTokens(Buffer):
    """A buffer whose initial tokens cannot be made."""

    priorities = In("priorities", rate="auto", optional=True, initial=lambda: 1 // 0)

    def fire(self, data: Batch, priorities: list[Any] | None) -> list[Batch]:
        return [data]


class TooFewTokens(Node):
    """Gives two tokens in each firing, and only one from the fourth firing on."""

    data = Out("samples", rate=2)

    def setup(self) -> None:
        self.fired = 0

    def fire(self) -> list[Batch]:
        self.fired += 1
        return [table(0)] * (2 if self.fired < 4 else 1)


class ChangingColumns(Node):
    """Gives another column in the third firing of replica 0."""

    data = Out("samples")

    def setup(self) -> None:
        self.fired = 0

    def fire(self) -> Batch:
        self.fired += 1
        name = "m" if self.fired == 3 and not self.ctx.replica else "n"
        return Batch({name: np.arange(2)})


class FailsOnce(Node):
    """Fails in its second firing, unless it was restarted."""

    data = In("samples")
    out = Out("samples")

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Batch) -> Batch:
        self.fired += 1
        if self.fired == 2 and not self.ctx.restarts:
            raise RuntimeError("not today")
        return data


class SignalSender(Node):
    """Sends signals to its own process in one firing, and may hang then."""

    data = In("samples")

    class Config(Config):
        firing: int = param(0, "the firing in which it sends")
        signals: list[str] = param([], "such as SIGINT")
        hangs: bool = param(False, "do not return from that firing")

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Batch) -> None:
        self.fired += 1
        if self.fired - 1 == self.config.firing:
            for name in self.config.signals:
                os.kill(os.getpid(), signal.Signals[name])
            if self.config.hangs:
                print("the node hangs", flush=True)
                while True:  # Python may miss a signal at the beginning of a wait without an end
                    time.sleep(0.01)


class OddMetrics(Node):
    """Records metrics that JSON cannot represent."""

    data = In("samples")

    def fire(self, data: Batch) -> None:
        self.ctx.metrics({"n": data["n"][0], "nan": float("nan"), "inf": -float("inf")})


class ReservedMetric(Node):
    """Records a metric with the name of a column that every row has."""

    data = In("samples")

    def fire(self, data: Batch) -> None:
        self.ctx.metrics({"env_steps": 1.0})


class NanEvaluator(Evaluator):
    """An evaluator whose returns are not numbers."""

    def fire(self, weights: State) -> Batch:
        self.ctx.metrics({"return_mean": float("nan")})
        return table(0)


class LargeCheckpoints(Node):
    """An evaluator that saves a large checkpoint in each firing, to fill disks."""

    role = "evaluator"
    weights = StateIn("weights")

    def fire(self, weights: State) -> None:
        self.ctx.metrics({"return_mean": 1.0})
        self.ctx.save_checkpoint("best", State({"large": np.zeros(1 << 18)}), eval_return=1.0)


class PacedReader(Evaluator):
    """Reads weights like an evaluator, without that role."""

    role = ""


class StateRelay(Node):
    """Reads a state, and provides one."""

    weights = StateIn("weights")
    mine = StateOut("weights", optional=True)

    def fire(self, weights: State) -> None:
        self.ctx.log(f"saw {weights.version}")

    def state(self, port: str) -> State:
        return State({"of": np.zeros(1)})
