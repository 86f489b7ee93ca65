"""Small nodes for tests of the engine: they tell what they saw in their log."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import numpy as np

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.config import Config, param
from flowrl.core.node import Facts, Node, Surroundings
from flowrl.core.ports import ANY, In, Link, Out, Service, StateIn, StateOut
from flowrl.core.state import State

TABLE = {"n": Column("int64")}


def table(*numbers: int) -> Batch:
    """A token whose rows are these numbers."""
    return Batch({"n": np.array(numbers, np.int64)})


def shown(token: Any) -> str:
    """A token, or a list of tokens, as a log shows it."""
    if isinstance(token, list):
        return "[" + " | ".join(map(shown, token)) + "]"
    return ",".join(map(str, token["n"])) if isinstance(token, Batch) else str(token)


class Source(Node):
    """Token k of replica r is the number 100 r + k; one firing is `steps` env steps."""

    role = "collector"
    weights = StateIn("weights", optional=True)
    data = Out("samples", rate="give")

    class Config(Config):
        give: int = param(1, "tokens in each firing", ge=1)
        steps: int = param(10, "env steps of a firing", ge=0)
        mode: str = param("usual", "what it says of itself", phase=True)

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


class Relay(Node):
    """Hands its token on."""

    data = In("samples")
    out = Out("samples")

    def fire(self, data: Batch) -> Batch:
        self.ctx.log(shown(data))
        return data


class Gear(Node):
    """Takes some tokens and gives some: each the sum of those taken."""

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
    """Takes a token of each of two inputs."""

    left = In("samples")
    right = In("samples")
    out = Out("samples", optional=True)

    def fire(self, left: Batch, right: Batch) -> Batch:
        self.ctx.log(f"{shown(left)} and {shown(right)}")
        return left


class Split(Node):
    """Two outputs, each with the token that came in."""

    data = In("samples")
    left = Out("samples")
    right = Out("samples", optional=True)

    def fire(self, data: Batch) -> dict[str, Batch]:
        self.ctx.log(" ".join(sorted(p for p in ("left", "right") if self.ctx.is_consumed(p))))
        return {"left": data, "right": data}


class Drain(Node):
    """Takes a token, and tells it and what was done for it."""

    data = In(ANY)

    class Config(Config):
        clock: bool = param(False, "tell the token's past instead of the token")

    def fire(self, data: Any) -> None:
        self.ctx.log(shown(data) if not self.config.clock else str(tuple(self.ctx.clock.total)))


class Buffer(Node):
    """Gives the number of what came in, `updates` times; priorities close the loop."""

    data = In("samples")
    priorities = In("priorities", rate="auto", optional=True, initial=lambda: "begin")
    batches = Out("samples", rate="updates")

    class Config(Config):
        updates: int = param(1, "batches for each token", ge=1)

    def fire(self, data: Batch, priorities: list[Any] | None) -> list[Batch]:
        told = "" if priorities is None else f" after {shown(priorities)}"
        self.ctx.log(f"{shown(data)}{told}{'' if self.ctx.is_consumed('batches') else ' unwanted'}")
        return [data] * self.config.updates if self.ctx.is_consumed("batches") else []


class Learner(Node):
    """Its weights depend on the order of what came; it counts how often they are copied."""

    role = "learner"
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


class Judge(Node):
    """Tells the version that it sees; its goal is a version."""

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


class Follower(Node):
    """A stream and a state come in: tells both."""

    data = In("samples")
    weights = StateIn("weights")

    def fire(self, data: Batch, weights: State) -> None:
        self.ctx.log(f"{shown(data)} saw {weights.version} ({weights.arrays['sum'][0]:g})")


class Dice(Node):
    """Tells random numbers of its own."""

    data = In("samples")

    def setup(self) -> None:
        self.rng = self.ctx.rng("dice")

    def fire(self, data: Batch) -> None:
        self.ctx.log(str(self.rng.integers(10**9)))


class Well(Node):
    """A service; tells in its log how often it was called."""

    water = Service("water", methods=("draw",))
    made: list[int] = []  # for tests of closing: the instances that are open now

    def setup(self) -> None:
        self.drawn = 0
        Well.made.append(id(self))

    def draw(self) -> int:
        self.drawn += 1
        return self.drawn

    def close(self) -> None:
        Well.made.remove(id(self))


class Hermit(Node):
    """A service that nobody calls."""

    peace = Service("peace", methods=(), optional=True)


class Bucket(Node):
    """Calls the well; spills the third draw of a well, in the lives that its parameter lists."""

    role = "collector"
    water = Link("water")
    data = Out("samples")

    class Config(Config):
        spills: list[int] = param([], "lives (restarts before them) whose third draw fails")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE}, env_steps=1)

    def fire(self) -> Batch:
        drawn = self.water.draw()
        self.ctx.count(env_steps=1)
        if self.ctx.restarts in self.config.spills and drawn == 3:
            self.ctx.log("this does not count either")
            raise RuntimeError(f"spilt draw {drawn}")
        return table(drawn)


class Fails(Node):
    """Fails, in the way and at the firing that its parameters say."""

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
        Fails.closed.append(self.ctx.key)
        if self.config.closing:
            raise OSError("cannot be closed")


class Liar(Node):
    """Promises `n` and `x`, and gives what its parameter says."""

    data = In("samples")
    out = Out("samples")

    class Config(Config):
        gives: str = param("truth", "what kind of lie")

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


class Uneven(Node):
    """Two outputs, the second a list of two tokens; gives what its parameter says."""

    data = In("samples")
    one = Out("samples")
    two = Out("samples", rate=2)

    class Config(Config):
        gives: str = param("truth", "what kind of lie")

    def fire(self, data: Batch) -> Any:
        return {
            "truth": {"one": data, "two": [data, data]},
            "nothing": None,
            "missing": {"one": data},
            "unknown": {"one": data, "two": [data, data], "three": data},
            "too few": {"one": data, "two": [data]},
            "no list": {"one": data, "two": data},
        }[self.config.gives]


class Broken(Learner):
    """A learner that cannot tell its weights."""

    def state(self, port: str) -> State:
        raise LookupError("weights are lost")


class Live(Learner):
    """A learner that gives its weights away and then writes to them: versions must not change."""

    def fire(self, data: Batch) -> str:
        self.sum += 1.0
        return ""

    def state(self, port: str) -> State:
        return State({"sum": self.sum})


@flowrl.as_node
def double(data: Batch, *, times: int = 2) -> Batch:
    """A stateless node."""
    return data.replace(n=data["n"] * times)


class Stubborn(Node):
    """Declares a setting of phases, and does not take it."""

    data = Out("samples")

    class Config(Config):
        mode: str = param("usual", "what a phase would set", phase=True)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": TABLE})

    def fire(self) -> Batch:
        return table(0)


class NoBeginning(Buffer):
    """Its initial tokens cannot be made."""

    priorities = In("priorities", rate="auto", optional=True, initial=lambda: 1 // 0)

    def fire(self, data: Batch, priorities: list[Any] | None) -> list[Batch]:
        return [data]


class Tired(Node):
    """Gives two tokens a firing, until it is tired."""

    data = Out("samples", rate=2)

    def setup(self) -> None:
        self.fired = 0

    def fire(self) -> list[Batch]:
        self.fired += 1
        return [table(0)] * (2 if self.fired < 4 else 1)


class Fickle(Node):
    """Replicas whose columns differ after a while."""

    data = Out("samples")

    def setup(self) -> None:
        self.fired = 0

    def fire(self) -> Batch:
        self.fired += 1
        name = "m" if self.fired == 3 and not self.ctx.replica else "n"
        return Batch({name: np.arange(2)})


class Moody(Node):
    """Its first life ends in the second firing."""

    data = In("samples")
    out = Out("samples")

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Batch) -> Batch:
        self.fired += 1
        if self.fired == 2 and not self.ctx.restarts:
            raise RuntimeError("not today")
        return data


class Signaller(Node):
    """Sends signals to its own process in one firing, and may wait for more for ever."""

    data = In("samples")

    class Config(Config):
        firing: int = param(0, "the firing in which it sends")
        signals: list[str] = param([], "such as SIGINT")
        hangs: bool = param(False, "do not come back from that firing")

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Batch) -> None:
        self.fired += 1
        if self.fired - 1 == self.config.firing:
            for name in self.config.signals:
                os.kill(os.getpid(), signal.Signals[name])
            if self.config.hangs:
                self.ctx.metrics({"hangs": 1})
                threading.Event().wait()


class Measure(Node):
    """Tells numbers, some of which JSON does not know."""

    data = In("samples")

    def fire(self, data: Batch) -> None:
        self.ctx.metrics({"n": data["n"][0], "nan": float("nan"), "inf": -float("inf")})


class Misnames(Node):
    """Gives a metric a name that every row of metrics has."""

    data = In("samples")

    def fire(self, data: Batch) -> None:
        self.ctx.metrics({"env_steps": 1.0})


class Hopeless(Judge):
    """Its evaluations end in nothing that is a number."""

    def fire(self, weights: State) -> Batch:
        self.ctx.metrics({"return_mean": float("nan")})
        return table(0)


class Hoarder(Node):
    """Keeps a large state after each firing, for disks to be full."""

    role = "evaluator"
    weights = StateIn("weights")

    def fire(self, weights: State) -> None:
        self.ctx.metrics({"return_mean": 1.0})
        self.ctx.save_checkpoint("best", State({"large": np.zeros(1 << 18)}), eval_return=1.0)


class Plain(Judge):
    """Looks at weights, and is no evaluator."""

    role = ""


class Mirror(Node):
    """Follows a state, and is one."""

    weights = StateIn("weights")
    mine = StateOut("weights", optional=True)

    def fire(self, weights: State) -> None:
        self.ctx.log(f"saw {weights.version}")

    def state(self, port: str) -> State:
        return State({"of": np.zeros(1)})
