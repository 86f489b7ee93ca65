"""Nodes whose numbers are not always finite, or not exact in half precision, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import flowrl
from flowrl.core.batch import Batch, Column
from flowrl.core.config import Config, param
from flowrl.core.facts import Facts, Surroundings
from flowrl.core.node import Node
from flowrl.core.ports import In, Out, StateIn, StateOut
from flowrl.core.state import State

ROWS = {"reward": Column("float32"), "obs": Column("float32", (2,)), "note": Column("float32")}
FRACTIONS = {"x": Column("float32"), "wide": Column("float64"), "n": Column("int64")}


class Rows(Node):
    """A collector of rows. `note` is NaN, and no learner learns from it."""

    role = "collector"
    data = Out("samples")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": ROWS}, env_steps=4)

    def fire(self) -> Batch:
        self.ctx.count(env_steps=4)
        columns = {name: np.ones((4, *c.shape), c.dtype) for name, c in ROWS.items()}
        return Batch({**columns, "note": np.full(4, np.nan, np.float32)})


class Spoiler(Node):
    """Writes a value to row 2 of a column, in one of its firings."""

    data = In("samples")
    out = Out("samples")

    class Config(Config):
        column: str = param("reward", "that is changed")
        value: str = param("nan", "that it gets")
        firing: int = param(3, "in which it is changed")
        passes_on: bool = param(False, "states that it does not make numbers")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"out": surroundings.inputs["data"]}, checks_numbers=config.passes_on)

    def setup(self) -> None:
        self.fired = 0

    def fire(self, data: Batch) -> Batch:
        self.fired += 1
        if self.fired <= self.config.firing:
            return data
        changed = data[self.config.column].copy()
        changed[2] = float(self.config.value)
        return data.replace(**{self.config.column: changed})


@flowrl.as_node
def halve_in_place(data: Batch) -> Batch:
    rewards = data["reward"]
    rewards *= 0.5
    return data


class RowLearner(Node):
    """Learns from rewards and observations; its weights become NaN in one of its firings."""

    role = "learner"
    data = In("samples")
    weights = StateOut("weights")

    class Config(Config):
        diverges_in: int = param(-1, "the firing")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(needs={"data": {name: ROWS[name] for name in ("reward", "obs")}})

    def setup(self) -> None:
        self.mean, self.fired = 0.0, 0

    def fire(self, data: Batch) -> None:
        self.mean += float(data["reward"].sum() + data["obs"].sum())
        if self.fired == self.config.diverges_in:
            self.mean = float("nan")
        self.fired += 1

    def state(self, port: str) -> State:
        return State({"bias": np.zeros(2, np.float32), "mean": np.array([self.mean])})


class Fractions(Node):
    """A collector of fractions, which depend on the weights; none is exact in half precision."""

    role = "collector"
    weights = StateIn("weights")
    data = Out("samples")

    class Config(Config):
        scale: float = param(1.0, "by which they are multiplied")

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        return Facts(outs={"data": FRACTIONS}, env_steps=3)

    def setup(self) -> None:
        self.fired = 0

    def fire(self, weights: State) -> Batch:
        self.fired += 1
        self.ctx.count(env_steps=3)
        self.ctx.log(hexes(weights.arrays["mean"], weights.arrays["exact"]))
        numbers = (self.fired + np.arange(1, 4) / 3 + weights.arrays["mean"]) * self.config.scale
        return Batch(
            {
                "x": numbers.astype(np.float32),
                "wide": numbers.astype(np.float64),
                "n": np.arange(3) + 100_001,
            }
        )


class FractionLearner(Node):
    """Averages fractions. Its state has a float32 array, which an edge may round, and one of float64."""

    role = "learner"
    data = In("samples")
    weights = StateOut("weights")

    def setup(self) -> None:
        self.mean, self.exact = np.zeros(1, np.float32), np.zeros(1)

    def fire(self, data: Batch) -> None:
        self.ctx.log(hexes(data["x"], data["wide"], data["n"]))
        self.mean = (self.mean + data["x"].mean(keepdims=True)) / np.float32(9)
        self.exact = (self.exact + data["wide"].mean(keepdims=True)) / 9

    def state(self, port: str) -> State:
        return State({"mean": self.mean.copy(), "exact": self.exact.copy()}, {"third": 1 / 3})


class FractionReader(Node):
    """Logs the weights that pace it, and saves them."""

    role = "evaluator"
    weights = StateIn("weights")

    def fire(self, weights: State) -> None:
        self.ctx.log(f"{hexes(*weights.arrays.values())} {weights.command['third'].hex()}")
        self.ctx.save_checkpoint("best", weights, eval_return=1.0)


def hexes(*arrays: Any) -> str:
    """Return the bytes of arrays, for a log."""
    return " ".join(array.tobytes().hex() for array in arrays)
