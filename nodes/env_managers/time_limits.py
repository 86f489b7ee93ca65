"""Time limits that the manager counts for all its envs at once: a wrapper costs at each step of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics

NEVER = 1 << 62


class TimeLimits:
    """After how many steps each env's episode is truncated, where nobody else sees to that."""

    def __init__(self, count: int) -> None:
        self._most = np.full(count, NEVER, np.int64)
        self._clear = 0  # steps of all envs in which surely none comes to its limit

    def stepped(self, index: int, env: Any) -> Any:
        """What is to be stepped: the env, without gymnasium's `TimeLimit` where that is outermost."""
        from gymnasium.wrappers import TimeLimit

        most = getattr(env, "_max_episode_steps", None) if type(env) is TimeLimit else None
        self._most[index] = NEVER if most is None else most
        return env if most is None else env.env

    def reached(self, accounts: EpisodeStatistics, at: Array | None) -> Iterable[int]:
        """The rows of these envs (None: all) whose limit is reached by the step being taken."""
        if at is not None:
            self._clear = 0
            left = self._most[at] - accounts.lengths[at] - 1
        elif self._clear > 0:
            self._clear -= 1
            return ()
        else:
            left = self._most - accounts.lengths - 1
            self._clear = int(left.min()) - 1
        rows: list[int] = np.flatnonzero(left <= 0).tolist()
        return rows
