"""Bringing the envs of a worker that ended back to where they were, with another worker.

An env is begun with its episode's seed again, and stepped with the actions that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from flowrl.batch import Array
from flowrl.nodes.envs.accounts import Accounts
from flowrl.nodes.envs.action_log import ActionLog
from flowrl.nodes.envs.board import BEGIN, ENDED, FAILED, FAILED_AFTER, IDLE, RENEW, STARTING, STEP
from flowrl.nodes.envs.crew import Crew
from flowrl.nodes.envs.failures import Counts

RESULT = ("action", "flags", "reward", "total", "last", "seed", "obs")


def _play_again(
    crew: Crew, row: int, seed: int, actions: Sequence[Array], failed: Callable[[], bool]
) -> bool:
    """Whether the env of a row, begun and stepped so, sees what its row says that it saw.

    If so, the row is left as it was found. `failed` says whether its worker has ended meanwhile.
    """
    board = crew.board
    found = {name: getattr(board, name)[row].copy() for name in RESULT}
    board.seed[row], board.pause[row] = seed, 0.0
    for order, action in [(BEGIN, None), *((STEP, action) for action in actions)]:
        if action is not None:
            board.action[row] = action
        crew.order(row, order)
        crew.wait(np.array([row]))
        if failed() or board.flags[row]:
            return False
    same = np.array_equal(board.obs[row], found["obs"])
    for name, value in found.items():
        getattr(board, name)[row] = value
    return bool(same)


@dataclass(slots=True)
class Rescue:
    """What was lost with a worker, and how it comes back. The manager keeps these lists."""

    crew: Crew
    accounts: Accounts
    log: ActionLog
    counts: Counts
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
        self._busy[number] = ""
        # What is to be done is ordered when all are where they were: it may end the worker again.
        again = [self._bring_back(number, row, order) for row, order in orders.items()]
        del self._busy[number]
        for row, order in zip(orders, again, strict=True):
            if order:
                crew.order(row, order)

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
        if order in (BEGIN, RENEW):
            return BEGIN
        if order != STEP:
            if board.flags[row] & (FAILED | FAILED_AFTER):
                return IDLE  # it is begun anew anyway
            if row != self.row[index] or self.begins[index]:
                return BEGIN  # a spare, or an episode that nobody has seen: both know their seed
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
        actions, complete = self.log.of(index)
        seed = self.accounts.seeds[index]
        if order == STEP:
            actions = actions[:-1]  # which is done after that
        elif board.flags[row] & ENDED:  # it was in the next already
            actions, complete, seed = [], True, int(board.seed[row])
        if not complete:
            return "its episode is too long to be played again"
        if _play_again(self.crew, row, seed, actions, lambda: bool(self._busy[number])):
            return ""
        return self._busy[number] or "it did not come to the same state again"
