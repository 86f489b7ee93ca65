"""Weights of rows by the returns of their episodes, for reward-balanced cloning."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.facts import Facts, Surroundings, UnsoundError
from flowrl.core.node import Node
from flowrl.core.ports import In, Out
from flowrl.nodes.buffers.episodes.segments import segment_bounds

WEIGHT: Schema = {"weight": Column("float32")}
READS = ("reward", "last")


class ReturnWeights(Node):
    """Adds the column `weight`, which is larger the better the row's episode is. Losses are weighted by it.

    So a policy that imitates demonstrations of different quality learns most from the best ones. The episodes of a
    token are compared with each other; `last` ends an episode, and so does the end of the token.
    """

    may_end_run = False
    data = In("samples")
    out = Out("samples", about="the same rows with the column `weight`, whose mean is 1")

    class Config(BaseConfig):
        temperature: float = param(
            0.5,
            "deviations of the returns by which a better episode has e times the weight",
            gt=0,
        )

    @classmethod
    def describe(cls, config: Any, surroundings: Surroundings) -> Facts:
        schema = surroundings.inputs["data"] or {}
        for name in READS:
            if name not in schema or schema[name].shape:
                has = ", ".join(schema)
                what = f"return_weights reads the column '{name}' of single steps, and the rows have {has}"
                raise UnsoundError(what, "connect demonstrations with rewards, or a collector")
        return Facts(outs={"out": {**schema, **WEIGHT}}, needs_order=frozenset({"data"}))

    def fire(self, data: Batch) -> Batch:
        """Return the rows with their weights."""
        weight = return_weights(data["reward"], data["last"], self.config.temperature)
        return data.replace(weight=weight)


def return_weights(reward: Array, last: Array, temperature: float) -> Array:
    """exp(R / (temperature std R)) of each row's episode, with R its return, divided by the mean over all rows (n,)."""
    if not len(reward):
        return np.zeros(0, np.float32)
    begins, ends = segment_bounds(last)
    returns = np.add.reduceat(reward.astype(np.float64), begins)
    scaled = (returns - returns.max()) / (temperature * (returns.std() or 1.0))
    weight = np.repeat(np.exp(scaled), ends - begins)
    return (weight / weight.mean()).astype(np.float32)
