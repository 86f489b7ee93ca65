"""Bringing the envs of a worker that ended back to where they were, with another worker.

An env is begun with its episode's seed again, and stepped with the actions that it had.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.action_log import ActionLog
from flowrl.nodes.env_managers.carry_over import CONTINUES
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.env_managers.failures import FailureCounts
from flowrl.nodes.env_managers.replay_on_board import EpisodeActions, replay_episodes
from flowrl.nodes.env_managers.workers.shared_rows import (
    ENDED,
    FAILED,
    IDLE,
    NEXT_RESET_FAILED,
    RECREATE,
    RESET,
    STARTING,
    STEP,
)
from flowrl.nodes.env_managers.workers.worker_pool import WorkerPool

RESULT = ("action", "flags", "reward", "total", "last", "seed", "obs")


@dataclass(slots=True)
class WorkerRecovery:
    """What was lost with a worker, and how it comes back. The manager keeps these lists."""

    crew: WorkerPool
    accounts: EpisodeStatistics
    log: ActionLog
    carried: list[str]  # what each env had of earlier episodes
    counts: FailureCounts
    row: Array  # where each env plays
    begins: list[bool]  # whether it begins an episode, rather than being in one
    sent: dict[int, None]  # envs whose result is waited for
    unfit: set[int]  # envs that were lost while nobody waited for them
    pre_reset: bool
    limit_s: float | None = None  # the deadline that was passed last
    _busy: dict[int, str] = field(default_factory=dict)  # workers at it; what went wrong
    _revived: dict[int, tuple[int, int]] = field(default_factory=dict)  # by env: seed and step

    def lost(self, number: int, blamed: int, why: str, limit_s: float | None) -> None:
        """Replace a worker, which was busy with the row `blamed`, and bring back what it can."""
        if number in self._busy:  # it fails again: whoever brings its envs back hears of it
            self._busy[number] = why
            self.crew.give_up(number)
            self.crew.hire_again(number)
            return
        crew, board, rows = self.crew, self.crew.board, self.crew.rows[number]
        orders = dict(zip(rows, board.todo[rows.start : rows.stop].tolist(), strict=True))
        if blamed < 0 and board.state[number] == STARTING:
            blamed = next((row for row, order in orders.items() if order), -1)
        tail = crew.give_up(number)
        self.counts.replaced_workers += 1
        crew.hire_again(number)
        if blamed >= 0 and not self._may_revive(blamed, limit_s):
            self.limit_s = limit_s
            del orders[blamed]
            self._mark(blamed, f"{why}\n{tail}")
        # What is to be done is ordered when all are where they were: it may end the worker again.
        for row, order in self._bring_all_back(number, orders).items():
            if order:
                crew.order(row, order)

    def _bring_all_back(self, number: int, orders: dict[int, int]) -> dict[int, int]:
        """What is to be ordered then. Whoever ends the new worker, too, is lost: the others begin again."""
        restored = self.counts.restored_envs
        while True:
            self._busy[number], self.counts.restored_envs, again = "", restored, {}
            for row, order in orders.items():
                again[row] = self._bring_back(number, row, order)
                if self._busy[number]:
                    orders = {other: order for other, order in orders.items() if other != row}
                    break
            else:
                del self._busy[number]
                return again

    def _index(self, row: int) -> int:
        return row % len(self.row)

    def _may_revive(self, row: int, limit_s: float | None) -> bool:
        """Whoever was killed from outside does it again without harm; who ends by itself does not."""
        index = self._index(row)
        where = (int(self.crew.board.seed[row]), self.accounts.length(index))
        again = self._revived.get(index) == where
        self._revived[index] = where
        return limit_s is None and not again

    def _mark(self, row: int, what: str) -> None:
        """The env is lost: its next result is that it failed."""
        self.crew.board.write(row, what)
        self.crew.board.flags[row] = FAILED
        index = self._index(row)
        if index not in self.sent and row == self.row[index]:
            self.unfit.add(index)

    def _bring_back(self, number: int, row: int, order: int) -> int:
        """Have a new worker's env be where it was; what is to be ordered then."""
        index, board = self._index(row), self.crew.board
        if order in (RESET, RECREATE):
            return RESET
        if order != STEP:
            if board.flags[row] & (FAILED | NEXT_RESET_FAILED):
                return IDLE  # it is begun anew anyway
            if row != self.row[index] or self.begins[index]:
                return RESET  # a spare, or an episode that nobody has seen: both know their seed
            if board.flags[row] & ENDED and self.pre_reset:
                return IDLE  # it becomes the spare
        why = self._again(number, row, order)
        if why:
            board.todo[row] = IDLE
            self._mark(row, f"its worker was replaced, and {why}")
            return IDLE
        self.counts.restored_envs += 1
        return order

    def _again(self, number: int, row: int, order: int) -> str:
        """Bring an env that was in an episode back to where it was; what went wrong."""
        index, board = self._index(row), self.crew.board
        played, complete = self.log.episodes(index)
        episodes: EpisodeActions = played
        if order == STEP:
            seed, actions = played[-1]
            episodes = [*played[:-1], (seed, actions[:-1])]  # the last is done after that
        elif board.flags[row] & ENDED:  # it was in the next already
            after: EpisodeActions = [(int(board.seed[row]), [])]
            goes_on = board.carries(row) == CONTINUES
            episodes, complete = ([*played, *after], complete) if goes_on else (after, True)
        if not complete:
            return "its episode is too long to be played again"
        if episodes[0][0] == played[0][0]:
            board.carry(row, self.carried[index])
        if self._same(number, row, episodes):
            return ""
        return self._busy[number] or "it did not come to the same state again"

    def _same(self, number: int, row: int, episodes: EpisodeActions) -> bool:
        """Whether the env of a row, played again, sees what its row says that it saw.

        If so, the row is left as it was found.
        """
        board = self.crew.board
        found = {name: getattr(board, name)[row].copy() for name in RESULT}
        came = row in replay_episodes(self.crew, {row: episodes})
        if self._busy[number] or not came or not np.array_equal(board.obs[row], found["obs"]):
            return False
        for name, value in found.items():
            getattr(board, name)[row] = value
        return True
