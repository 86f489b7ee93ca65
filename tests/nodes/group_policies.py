"""A policy whose actions follow from its observations and its weight, for tests of groups of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import param
from flowrl.core.state import State
from tests.nodes.toy_policies import Toy


class Following(Toy):
    """The action is the sum of what is observed plus the weight: modulo the number of actions, or as a real number.

    The memory counts the steps of the episode.
    """

    class Config(Toy.Config):
        unroll_steps: int | None = param(None, "steps of an unroll")

    def collect_columns(self) -> Schema:
        return {"action": self.action, "version": Column("float32")}

    def memory_columns(self) -> Schema:
        return {"memory": Column("float32", (1,))}

    def learn_columns(self) -> Schema:
        return {"reward": Column("float32")}

    def collect_mode(self, seed: int) -> Any:
        return FollowingMode(self)

    def eval_mode(self, seed: int) -> Any:
        return FollowingMode(self)


class FollowingMode:
    memory = {"memory": Column("float32", (1,))}

    def __init__(self, policy: Following) -> None:
        self.action, self.weight = policy.action, 0

    def load(self, state: State) -> None:
        self.weight = int(state.arrays["w"][0])

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        remembered = memory["memory"]
        actions = np.stack([chosen_action(self.action, row, self.weight) for row in obs])
        version = np.full(len(obs), self.weight, np.float32)
        return {"action": actions, "version": version, "memory": remembered + 1}


def chosen_action(column: Column, obs: Array, weight: int) -> Array:
    """The action at one observation."""
    total = float(obs[1:].sum()) + weight
    if column.n is not None:
        return np.array(int(abs(total)) % column.n, column.dtype)
    return np.full(column.shape, np.sin(total), column.dtype)
