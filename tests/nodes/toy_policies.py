"""Policies without torch, whose numbers can be computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Batch, Column, Schema
from flowrl.core.config import Config as BaseConfig
from flowrl.core.config import param
from flowrl.core.state import Count, State
from flowrl.nodes.policy import NOTHING_FOUND, LearnResult, Policy


class Toy(Policy):
    """Its weight counts train iterations, its action is the weight mod 3, and `logp` counts its calls."""

    class Config(BaseConfig):
        gamma: float = param(0.5, "discount")
        nstep: int = param(1, "n")
        priorities: bool = param(False, "whether learning returns priorities")

    def collect_columns(self) -> Schema:
        return {"action": self.action, "logp": Column("float32")}

    def learn_columns(self) -> Schema:
        return {"obs": self.obs, "reward": Column("float32")}

    def learn_mode(self, seed: int) -> Any:
        return ToyLearn(self, seed)

    def collect_mode(self, seed: int) -> Any:
        return ToyAct()

    def eval_mode(self, seed: int) -> Any:
        return ToyAct()

    def command(
        self, progress: Count, found: Mapping[str, float] = NOTHING_FOUND
    ) -> dict[str, float]:
        return {"iters": float(progress.train_iters), "steps": float(progress.env_steps)}


class ToyLearn:
    def __init__(self, policy: Toy, seed: int) -> None:
        self.policy, self.seed, self.weight, self.commands = policy, seed, 0, []

    def forward(self, batch: Batch, command: Mapping[str, float]) -> LearnResult:
        self.weight += 1
        self.commands.append(dict(command))
        priorities = batch["reward"] if self.policy.config.priorities else None
        return LearnResult({"loss": np.float32(self.weight)}, priorities)

    def weights(self) -> dict[str, Array]:
        return {"w": np.array([self.weight], np.float32)}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.weight = state["weight"]


class ToyAct:
    def __init__(self) -> None:
        self.weight, self.acted, self.loads = 0, 0, 0

    def load(self, state: State) -> None:
        self.weight = int(state.arrays["w"][0])
        self.loads += 1

    def forward(self, obs: Array) -> dict[str, Array]:
        self.acted += 1
        rows = len(obs)
        action = np.full(rows, self.weight % 3)
        return {"action": action, "logp": np.full(rows, self.acted, np.float32)}


def weights(value: int) -> State:
    """A version of the toy policy's weights."""
    return State({"w": np.array([value], np.float32)})
