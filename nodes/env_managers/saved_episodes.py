"""Envs saved by the seeds and actions of the episodes under way: one that keeps to them is as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowrl.core.batch import Array, Column
from flowrl.nodes.env_managers.action_log import ActionLog, Episode
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics


@dataclass(frozen=True, slots=True)
class EnvHistory:
    """What an env did since it last began afresh, and what came of it."""

    carried: str  # of the episodes before
    episodes: Sequence[Episode]  # it is in the last of these
    complete: bool  # whether its actions were kept
    seen: Array  # what it observes
    total: float  # the rewards of the last episode so far

    def why_not(self, seen: Array, total: float) -> str:
        """What differs, where it was played again; nothing: it is where it was."""
        if total != self.total:
            return (
                f"its episode had returned {self.total:g}, and {total:g} when it was played again"
            )
        if not np.array_equal(seen, self.seen):
            return "it observed something else when its episode was played again"
        return ""


ENDED_EARLY = "its episode ended too early when it was played again"
TOO_LONG = "its episode was too long to keep all of its actions"


def encode_histories(
    log: ActionLog, carried: Sequence[str], seen: Array, column: Column
) -> dict[str, Any]:
    """The episodes of all envs, as data."""
    rows, actions, complete = [], [], []
    for index in range(len(carried)):
        episodes, whole = log.episodes(index)
        complete.append(whole)
        for seed, taken in episodes[: None if whole else 1]:
            kept = taken if whole else []
            rows.append((index, seed, len(kept)))
            actions += kept
    return {
        "actions": np.array(actions, column.dtype).reshape(len(actions), *column.shape),
        "episodes": np.array(rows, np.int64),  # of which env, with which seed, how many actions
        "complete": np.array(complete),
        "carried": list(carried),
        "seen": np.array(seen),
    }


def decode_histories(state: Mapping[str, Any], accounts: EpisodeStatistics) -> list[EnvHistory]:
    """What each env did."""
    rows = np.asarray(state["episodes"])
    dealt = np.split(np.asarray(state["actions"]), np.cumsum(rows[:, 2])[:-1])
    episodes: list[list[Episode]] = [[] for _ in range(accounts.count)]
    for (index, seed, _), actions in zip(rows.tolist(), dealt, strict=True):
        episodes[index].append((seed, actions))
    totals = accounts.totals.tolist()
    each = zip(state["carried"], episodes, state["complete"], state["seen"], totals, strict=True)
    return [EnvHistory(*one) for one in each]
