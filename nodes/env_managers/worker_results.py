"""What each env of workers is about, and whether it came to what it was sent for: if not, it begins anew.

An env has a row on the board; with `pre_reset` it has two, and plays in one while its next episode is
begun in the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.action_log import ActionLog
from flowrl.nodes.env_managers.carry_over import CONTINUES
from flowrl.nodes.env_managers.env_error import EnvError, WorkerTraceback
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.env_managers.failures import FailureTracker
from flowrl.nodes.env_managers.saved_episodes import EnvHistory
from flowrl.nodes.env_managers.worker_recovery import WorkerRecovery
from flowrl.nodes.env_managers.workers.shared_rows import (
    ENDED,
    FAILED,
    NEXT_RESET_FAILED,
    RECREATE,
    RESET,
)
from flowrl.nodes.env_managers.workers.worker_pool import WorkerPool
from flowrl.nodes.envs.steps import Episode


class EnvTracker:
    """The envs between one reset of all and the next."""

    def __init__(
        self,
        crew: WorkerPool,
        config: Any,
        accounts: EpisodeStatistics,
        failures: FailureTracker,
        row: Array,
        checked: bool,
        error: Callable[..., EnvError],
    ) -> None:
        """`row`: where each env plays; `checked`: observations may be something else than finite;
        `error` makes that of an env that is not tried again."""
        count = config.count
        self.crew, self.board, self._config = crew, crew.board, config
        self.accounts, self._failures, self.log = accounts, failures, ActionLog(count)
        self.carried = [""] * count  # what each had of earlier episodes, when it began afresh
        self._checked, self._error = checked, error
        self.row = row
        self.source = row.copy()  # where what it sees next comes from: the spare, after an end
        self.sent: dict[int, None] = {}  # envs whose result is waited for
        self.broken = [False] * count
        self.begins = [True] * count  # rather than steps
        self.kept: dict[int, tuple[int, Episode]] = {}  # of ends whose successor could not begin
        self.odd: set[int] = set()  # envs that failed on the way to their next result
        self.unfit: set[int] = set()  # envs that were lost while nobody waited for them
        self.unrestored: set[int] = set()  # envs that are not where they were saved
        self.rescue = WorkerRecovery(
            crew,
            accounts,
            self.log,
            self.carried,
            failures.counts,
            row,
            self.begins,
            self.sent,
            self.unfit,
            config.pre_reset,
        )

    def lost(self, number: int, blamed: int, why: str, limit_s: float | None) -> None:
        """A worker had to be given up."""
        self.rescue.lost(number, blamed, why, limit_s)
        self._failures.tell()

    def clear(self) -> None:
        """All have begun, and none has been sent since."""
        self.begins[:] = [False] * len(self.begins)
        self.odd.clear()
        self.carried[:] = [self.board.carries(int(row)) for row in self.row]

    def restored(self, index: int, played: EnvHistory, why_not: str) -> None:
        """An env was played again to where it was; or not, and will begin anew in its next step."""
        self.begins[index] = False
        self.carried[index] = played.carried
        self.log.restore(index, played.episodes)
        if why_not:
            row = int(self.row[index])
            self.board.flags[row], self.board.obs[row] = FAILED, played.seen
            self.unfit.add(index)
            self.unrestored.add(index)
            self.log.lose(index)
            self._failures.unrestored(index, self.accounts.length(index), why_not)

    def begin(self, index: int, row: int, order: int, pause_s: float = 0.0) -> None:
        """Begin the env's next episode in this row."""
        seed = self.board.seed[row] = self.accounts.begin(index)
        self.log.begin(index, seed)
        self._order(row, order, pause_s)

    def _order(self, row: int, order: int, pause_s: float = 0.0) -> None:
        self.board.pause[row] = pause_s
        self.board.flags[row] = 0
        self.crew.order(row, order)

    def order_spare(self, index: int, row: int, order: int = RESET, pause_s: float = 0.0) -> None:
        """Begin the next episode ahead of time."""
        self.board.seed[row] = self.accounts.seed_of(index)
        self._order(row, order, pause_s)

    def next_seeds(self, indexes: Sequence[int]) -> None:
        """Tell the workers how the episodes after these begin."""
        for index in indexes:
            self.board.seed[self.row[index]] = self.accounts.seed_of(index)

    def settle(self, index: int) -> bool:
        """Whether an idle env has all that it was sent for; if not, what is missing is ordered."""
        board, row, source = self.board, int(self.row[index]), int(self.source[index])
        flags = int(board.flags[source])
        if source != row:  # a spare: its episode is there, or could not begin
            if flags & FAILED:
                self._retry_spare(index, source)
            return not flags & FAILED
        if not flags & FAILED and not self.begins[index] and not self._sound(row, flags):
            flags = FAILED
        if flags & FAILED:
            self._retry(index, row)
            return False
        if flags & NEXT_RESET_FAILED:
            self._keep_end(index, row, flags)
            self._retry(index, row)
            return False
        if flags & ENDED and self._config.pre_reset and not self.begins[index]:
            self.source[index] = self.other(row)
            return False
        return True

    def _sound(self, row: int, flags: int) -> bool:
        board = self.board
        seen = (board.last if flags & ENDED else board.obs)[row]
        if not self._checked or np.isfinite(seen).all():
            return True
        board.write(row, f"the observation is not finite: {seen}")
        seen[...] = 0  # nobody needs it, and a look at all rows at once would find it again
        return False

    def other(self, row: int) -> int:
        """An env's other row."""
        count = int(self._config.count)
        return row - count if row >= count else row + count

    def end(self, index: int) -> Episode:
        """The env's episode has ended."""
        if index in self.kept:
            return self.kept[index][1]
        total = float(self.board.total[self.row[index]])
        self._failures.ended(index)
        return self.accounts.end(index, None if math.isnan(total) else total)

    def begun(self, index: int) -> None:
        """The env is in its next episode."""
        old, row = int(self.row[index]), int(self.source[index])
        self._note(index, row, old == row and index in self.odd)
        self.row[index] = row
        if old != row:
            order = RECREATE if index in self.odd else RESET
            self.order_spare(index, old, order)
        else:
            self.next_seeds([index])
            self.board.flags[row] = 0
        self.broken[index] = self.begins[index] = False
        self.kept.pop(index, None)
        self.odd.discard(index)

    def _note(self, index: int, row: int, by_retry: bool) -> None:
        """How the env's episode began; a retry has noted its seed."""
        carried, steps = self.board.carries(row), self.accounts.length(index)
        seed = 0 if by_retry else self.accounts.begin(index)
        if carried != CONTINUES:
            self.carried[index] = carried
            if not by_retry:
                self.log.begin(index, seed)
        elif by_retry:
            self.log.lose(index)  # it goes on behind a failure, which is not played again
        else:
            self.log.go_on(index, seed, steps)

    def _retry(self, index: int, row: int) -> None:
        """A step or a reset failed: begin anew, if there is another attempt."""
        self.odd.add(index)
        told = index in self.unrestored
        self.unrestored.discard(index)
        stepped = not self.begins[index]
        lost = self.accounts.length(index) + 1 if stepped else None
        if not told and not self._failures.failed(index, lost):
            self._fail(index, row, lost or 0)
        self.begins[index] = True
        if stepped:
            self.broken[index] = True
            if self._config.pre_reset:
                self.source[index] = self.other(row)
                return
        if told:
            return self.begin(index, row, RESET)
        order = RECREATE if self._failures.renews(index) else RESET
        self.begin(index, row, order, self._failures.pause_s(index))

    def _keep_end(self, index: int, row: int, flags: int) -> None:
        """The episode has ended as it should; the next could not begin."""
        self.accounts.count_steps([index], self.board.reward[row : row + 1])
        self.kept[index] = (flags & ENDED, self.end(index))
        self.begins[index] = True
        self.accounts.begin(index)  # the episode that failed

    def _retry_spare(self, index: int, row: int) -> None:
        if not self._failures.failed(index, None):
            self._fail(index, row, 0)
        self.accounts.skip(index)
        order = RECREATE if self._failures.renews(index) else RESET
        self.order_spare(index, row, order, self._failures.pause_s(index))

    def _fail(self, index: int, row: int, step: int) -> NoReturn:
        """There is no other attempt."""
        what, _, traced = self.board.read(row).partition("\n")
        taken, complete = self.log.of(index) if step else ([], True)
        seed = int(self.board.seed[row]) if not step else self.accounts.seeds[index]
        self._failures.tell()
        error = self._error(index, seed, step, taken, what, traced, complete, self.rescue.limit_s)
        raise error from (WorkerTraceback(traced) if traced else None)
