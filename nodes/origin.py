"""Where rows come from: the columns that say who collected them, with which weights, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema

COLLECTOR, ENV, STEP, WEIGHTS = "origin/collector", "origin/env", "origin/step", "origin/weights"
OFFSET = "offset"  # of rows that are whole episodes: how many of its rows come before
NO_WEIGHTS = -1  # who acted had none, or those of a checkpoint
ORIGIN: Schema = {
    COLLECTOR: Column("int32"),  # the replica of the collector
    ENV: Column("int32"),  # its env
    STEP: Column("int64"),  # which of the steps that this env ever took
    WEIGHTS: Column("int64"),  # the version of the weights that acted, or NO_WEIGHTS
}


class Origin:
    """Counts the steps of a collector's envs."""

    def __init__(self, collector: int, envs: int, weights: int) -> None:
        self._collector = collector
        self._steps = np.zeros(envs, np.int64)
        self.weights = weights  # the version that acts

    def step(self, ids: Array | None) -> dict[str, Array]:
        """The columns of one step of these envs, or of all."""
        envs = np.arange(len(self._steps)) if ids is None else np.asarray(ids)
        steps = self._steps[envs]
        self._steps[envs] += 1
        return {
            COLLECTOR: np.full(len(envs), self._collector, np.int32),
            ENV: envs.astype(np.int32),
            STEP: steps,
            WEIGHTS: np.full(len(envs), self.weights, np.int64),
        }

    def state_dict(self) -> dict[str, Any]:
        """The steps so far."""
        return {"steps": self._steps.copy(), "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._steps[:] = state["steps"]
        self.weights = int(state["weights"])
