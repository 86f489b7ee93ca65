"""Time limits that the manager counts for all envs at once, because a wrapper costs time in each step of each env."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics

NO_LIMIT = 1 << 62


class TimeLimits:
    """The length at which each env's episode is truncated, for envs whose outermost wrapper is a `TimeLimit`."""

    def __init__(self, count: int) -> None:
        self._max_steps = np.full(count, NO_LIMIT, np.int64)
        self._safe_steps = 0  # steps of all envs before any of them can reach its limit

    def remove_wrapper(self, index: int, env: Any) -> Any:
        """Return the env to step. If its outermost wrapper is gymnasium's `TimeLimit`, take that over."""
        from gymnasium.wrappers import TimeLimit

        max_steps = getattr(env, "_max_episode_steps", None) if type(env) is TimeLimit else None
        self._max_steps[index] = NO_LIMIT if max_steps is None else max_steps
        return env if max_steps is None else env.env

    def rows_at_limit(self, statistics: EpisodeStatistics, at: Array | None) -> Iterable[int]:
        """The rows of these envs (None: all) that reach their limit with the step that is being taken."""
        if at is not None:
            self._safe_steps = 0
            left = self._max_steps[at] - statistics.lengths[at] - 1
        elif self._safe_steps > 0:
            self._safe_steps -= 1
            return ()
        else:
            left = self._max_steps - statistics.lengths - 1
            self._safe_steps = int(left.min()) - 1
        rows: list[int] = np.flatnonzero(left <= 0).tolist()
        return rows
