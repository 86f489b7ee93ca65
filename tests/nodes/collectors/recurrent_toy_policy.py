"""A recurrent policy without torch, whose numbers can be computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.state import State
from flowrl.nodes.policy import Policy


class StepCountingPolicy(Policy):
    """Its memory counts the steps of the episode, and `logp` is that count."""

    class Config(BaseConfig):
        gamma: float = param(0.5, "discount")
        nstep: int = param(1, "n")
        unroll_steps: int | None = param(4, "steps of an unroll")
        burn_in_steps: int = param(0, "steps that it shares with the previous unroll")

    def collect_columns(self) -> Schema:
        return {"action": self.action, "logp": Column("float32")}

    def memory_columns(self) -> Schema:
        return {"memory": Column("float32", (1,))}

    def learn_columns(self) -> Schema:
        return {}

    def collect_mode(self, seed: int) -> Any:
        return StepCountingMode()

    def eval_mode(self, seed: int) -> Any:
        return StepCountingMode()


class StepCountingMode:
    memory = {"memory": Column("float32", (1,))}

    def load(self, state: State) -> None:
        pass

    def forward(self, obs: Array, memory: Mapping[str, Array]) -> dict[str, Array]:
        remembered = memory["memory"]
        logp, action = remembered[:, 0].copy(), np.zeros(len(obs), np.int64)
        return {"action": action, "logp": logp, "memory": remembered + 1}
