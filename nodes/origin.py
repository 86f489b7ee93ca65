"""Origin columns: the collector, env and step that a row comes from, and the weights that acted."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column, Schema
from flowrl.core.context import Context
from flowrl.core.state import Clock

COLLECTOR_COLUMN, ENV_COLUMN = "origin/collector", "origin/env"
STEP_COLUMN, WEIGHTS_COLUMN = "origin/step", "origin/weights"
# In tokens of whole episodes: the number of rows of the episode before the row.
OFFSET_COLUMN = "offset"
# The columns by which a row's successor is found. A step of an env is followed by the step of the next index.
LINK_COLUMNS = (COLLECTOR_COLUMN, ENV_COLUMN, STEP_COLUMN)
NO_WEIGHTS_VERSION = -1  # the policy that acted has no weights, or the weights of a checkpoint
ORIGIN_SCHEMA: Schema = {
    COLLECTOR_COLUMN: Column("int32"),  # `collector_number`
    ENV_COLUMN: Column("int32"),  # the index of the env in the collector
    STEP_COLUMN: Column("int64"),  # the env's lifetime step index
    WEIGHTS_COLUMN: Column("int64"),  # the version of the weights that acted, or NO_WEIGHTS_VERSION
}


def collector_number(context: Context) -> int:
    """A number for each collector and replica of a graph. By hand, it differs if their names or seeds do."""
    return zlib.crc32(f"{context.seed}/{context.key}".encode()) >> 1


def origin_schema(envs: int) -> Schema:
    """The origin columns of a collector of so many envs."""
    return {**ORIGIN_SCHEMA, ENV_COLUMN: Column("int32", n=envs)}


def collected_at(columns: Mapping[str, Array], clock: Clock) -> Array | int:
    """The train iterations of the weights that collected each row; those of the clock if unknown.

    They are unknown of rows without origin columns or without weights, and if there are several learners,
    because a version does not say whose it is. Of the steps of an unroll, the oldest weights count.
    """
    now = clock.total.train_iters
    learners = sum(count.train_iters > 0 for count in clock.counts.values())
    if WEIGHTS_COLUMN not in columns or learners > 1:
        return now
    versions = columns[WEIGHTS_COLUMN]
    known = np.where(versions == NO_WEIGHTS_VERSION, now, versions)
    oldest: Array = known.reshape(len(known), -1).min(1) if known.ndim > 1 else known
    return oldest


class OriginTracker:
    """Counts the steps of a collector's envs, and makes the origin columns of their rows."""

    def __init__(self, collector: int, envs: int, weights: int) -> None:
        self._collector = np.full(envs, collector, np.int32)
        self._envs = np.arange(envs, dtype=np.int32)
        self._steps = np.zeros(envs, np.int64)
        self.weights = weights  # the version of the weights that act

    def step(self, ids: Array | None) -> dict[str, Array]:
        """Count one step of these envs, or of all envs; return its origin columns."""
        envs = slice(None) if ids is None else np.asarray(ids)
        steps = self._steps[envs].copy()
        self._steps[envs] += 1
        return {
            COLLECTOR_COLUMN: self._collector[envs],
            ENV_COLUMN: self._envs[envs],
            STEP_COLUMN: steps,
            WEIGHTS_COLUMN: np.full(len(steps), self.weights, np.int64),
        }

    def uncount(self, ids: Array) -> None:
        """Take back the last count of agents that did not act: it was not their turn."""
        self._steps[ids] -= 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps.copy(), "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps[:] = state["steps"]
        self.weights = int(state["weights"])
