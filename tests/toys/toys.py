"""Small node types for tests of the graph format and of `check`. Graphs name them `toys:Class`; they do not fire."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from flowrl.core.batch import Batch, Column, row_bytes
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import Part, param, part
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.functions import as_node
from flowrl.core.node import Node
from flowrl.core.ports import ANY, AUTO, In, Link, Out, Service, StateIn, StateOut

OBS = {"obs": Column("float32", (4,)), "action": Column("int64")}


class Greedy(Part):
    """A policy whose columns are parameters."""

    kind = "policy"

    class Config(BaseConfig):
        lr: float = param(0.1, "learning rate", gt=0)
        gives: list[str] = param([], "columns in addition to obs and action")
        needs: list[str] = param([], "columns that learning needs")
        shape: int = param(4, "width of obs", ge=1)
        dtype: str = param("float32", "of obs")


class Random(Part):
    """A policy without columns of its own."""

    kind = "policy"


class NetModel(Part):
    """A part of the kind `model`."""

    kind = "model"


class Envs(Node):
    """A stateful service."""

    serve = Service("envs", ("step",))

    class Config(BaseConfig):
        count: int = param(1, "envs", ge=1)
        shape: int = param(4, "width of obs")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(service={**OBS, "obs": Column("float32", (config.shape,))})


class StatelessEnvs(Envs):
    """The same service without state."""

    serve = Service("envs", ("step",), stateful=False)


class Relay(Node):
    """A service that calls another one."""

    inner = Link("envs")
    serve = Service("envs", ("step",))


class Collector(Node):
    """Gives rows with the columns of its env and its policy."""

    role = "collector"
    envs: Any = Link("envs")
    weights = StateIn("weights")
    data = Out("samples")

    class Config(BaseConfig):
        n_sample: int = param(8, "rows of a token", ge=1)
        policy: Any = part("policy", "what acts", shared="policy", phase=True)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        more = getattr(config.policy.config, "gives", [])
        columns = {**surroundings.links["envs"], **{n: Column("float32") for n in more}}
        return Facts(
            outs={"data": columns}, rows={"data": config.n_sample}, env_steps=config.n_sample
        )

    def fire(self, weights: Any) -> Batch:
        raise NotImplementedError


class Buffer(Node):
    """Keeps rows and draws batches."""

    data = In("samples")
    demos = In("samples", optional=True)
    priorities = In("priorities", rate="updates", optional=True, initial=lambda: None)
    batches = Out("samples", rate="updates")

    class Config(BaseConfig):
        size: int = param(100, "rows", ge=1)
        batch_size: int = param(8, "rows of a batch", ge=1)
        updates: int = param(1, "batches a round", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        if config.batch_size > config.size:
            raise UnsoundError(
                f"batches of {config.batch_size} rows are drawn from {config.size}",
                "make size larger",
                "batch_size",
            )
        schema = surroundings.inputs["data"]
        return Facts(
            outs={"batches": schema},
            rows={"batches": config.batch_size},
            needs_rows={"data": (config.batch_size, "batch_size")},
            memory_bytes=config.size * row_bytes(schema or {}),
        )

    def fire(self, data: Any, demos: Any, priorities: Any) -> Any:
        raise NotImplementedError


class Learner(Node):
    """Needs the columns that its policy needs."""

    role = "learner"
    data = In("samples")
    weights = StateOut("weights")
    priorities = Out("priorities", optional=True)

    class Config(BaseConfig):
        policy: Any = part("policy", "what learns", shared="policy")
        on_policy: bool = param(False, "must not be stale")
        every: int = param(1, "a parameter that is named like an option of edges", ge=1)

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        policy = config.policy.config
        needs = {n: Column("float32") for n in policy.needs}
        obs = Column(policy.dtype, (policy.shape,))
        return Facts(
            outs={"priorities": {"priority": Column("float32")}},
            needs={"data": {"obs": obs, **needs}},
            on_policy=config.on_policy,
        )

    def fire(self, data: Any) -> Any:
        raise NotImplementedError


class Evaluator(Node):
    """Takes no stream, and is driven by a state only."""

    role = "evaluator"
    weights = StateIn("weights")
    scores = Out("scores", optional=True)
    best = StateOut("weights", optional=True)

    def fire(self, weights: Any) -> Any:
        raise NotImplementedError


class Source(Node):
    """Has no input."""

    out = Out("samples", rate="rate")

    class Config(BaseConfig):
        rate: int = param(1, "tokens in each firing")
        columns: list[str] = param(["obs"], "columns of a token")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"out": {n: Column("float32") for n in config.columns}})

    def fire(self) -> Any:
        raise NotImplementedError


class Pipe(Node):
    """Takes and gives tokens at the rates of its parameters."""

    data = In("samples", rate="takes")
    out = Out("samples", rate="gives")

    class Config(BaseConfig):
        takes: int = param(1, "tokens in", ge=1)
        gives: int = param(1, "tokens out", ge=1)

    def fire(self, data: Any) -> Any:
        raise NotImplementedError


class Loop(Node):
    """Has a second input with initial tokens."""

    data = In("samples")
    back = In("samples", initial=lambda: None)
    out = Out("samples")

    def fire(self, data: Any, back: Any) -> Any:
        raise NotImplementedError


class Sink(Node):
    """Takes tokens of any type."""

    data = In(ANY, rate="rate")

    class Config(BaseConfig):
        rate: int = param(1, "tokens in each firing", ge=1)

    def fire(self, data: Any) -> None:
        raise NotImplementedError


class AutoSink(Node):
    """Takes all tokens of a round in one firing."""

    data = In("samples", rate=AUTO)

    def fire(self, data: Any) -> None:
        raise NotImplementedError


class AutoSource(Node):
    """Gives all tokens of a round in one firing."""

    out = Out("samples", rate=AUTO)

    def fire(self) -> Any:
        raise NotImplementedError


class Join(Node):
    """Two inputs of one type."""

    left = In("samples")
    right = In("samples")

    def fire(self, left: Any, right: Any) -> None:
        raise NotImplementedError


class Fork(Node):
    """Two outputs of one type."""

    data = In("samples")
    odd = Out("samples")
    even = Out("samples")

    def fire(self, data: Any) -> Any:
        raise NotImplementedError


class RaisingDescribe(Node):
    """Raises an error in `describe`."""

    out = Out("samples")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        raise ZeroDivisionError("no reason")

    def fire(self) -> Any:
        raise NotImplementedError


class WithoutFire(Node):
    """Has a stream input, and does not define `fire`."""

    data = In("samples")


class NondeterministicSource(Source):
    """States that runs may differ."""

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"out": {}}, nondeterministic="reads the clock")


class Typed(Node):
    """A parameter of every kind."""

    class Config(BaseConfig):
        whole: int = param(1, "whole", ge=1, le=10)
        real: float = param(0.5, "real")
        flag: bool = param(False, "flag")
        text: str = param("a", "text")
        maybe: int | None = param(None, "maybe")
        names: list[str] = param([], "names")
        table: dict[str, int] = param({}, "table")
        must: int = param(..., "must be given")


class ValidatedNode(Node):
    """Validates its parameters together, and has an optional part."""

    data = In(ANY)

    class Config(BaseConfig):
        low: int = param(0, "at least")
        high: int = param(1, "at most")
        model: Any = part("model", "a net, if any", default=None)

        @model_validator(mode="after")
        def ordered(self) -> Any:
            if self.low > 9:
                raise ZeroDivisionError("no reason")
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    def fire(self, data: Any) -> None:
        raise NotImplementedError


class TwoTypedInputs(Node):
    """Has inputs of two types."""

    data = In("samples")
    scores = In("scores")

    def fire(self, data: Any, scores: Any) -> None:
        raise NotImplementedError


class WrongFacts(Source):
    """Returns a dict from `describe`."""

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Any:
        return {"out": {}}


@as_node
def tally(data: Batch) -> int:
    """Return a number, which is not a table."""
    return len(data)


@as_node
def clip(data: Batch, *, low: float = -1.0, high: float = 1.0) -> Batch:
    """Clip the rewards."""
    return data.replace(reward=data["reward"].clip(low, high))


@as_node
def watch(data: Batch, more: Batch | None = None) -> None:
    """Take tables, and give no output."""


NOT_A_NODE = 3
