"""Tracks whether each env of the workers has the result that it was sent for, and restarts envs that failed.

A result may take several commands. If a step fails, the env is reset for its next episode, as often as `max_retry`
allows. If an episode ends and the reset of the next one fails, that reset is repeated. With `pre_reset`, an ended
episode is complete when the next one has begun in the spare row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from flowrl.core.batch import Array
from flowrl.nodes.env_managers.env_error import EnvError, WorkerTraceback
from flowrl.nodes.env_managers.env_history import CONTINUES, EnvHistory
from flowrl.nodes.env_managers.env_states import EnvStates
from flowrl.nodes.env_managers.episode_start import EpisodeStart
from flowrl.nodes.env_managers.episode_statistics import EpisodeStatistics
from flowrl.nodes.env_managers.failures import FailureTracker
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
    """The envs of a worker pool, from one reset of all envs to the next."""

    def __init__(
        self,
        pool: WorkerPool,
        config: Any,
        statistics: EpisodeStatistics,
        failures: FailureTracker,
        row: Array,
        check_finite: bool,
        make_error: Callable[..., EnvError],
        reset_options: str,
    ) -> None:
        """`row` is where each env plays. `check_finite` says that observations may be infinite or NaN. `make_error`
        makes the error of an env that has no attempt left. `reset_options` are those of the next episodes."""
        count = config.count
        self.pool, self.shared, self._config = pool, pool.shared, config
        self.statistics, self._failures = statistics, failures
        self._check_finite, self._make_error = check_finite, make_error
        self._reset_options = reset_options
        self.envs = EnvStates(statistics, row)
        self.step_failed = [False] * count  # whether the trajectory of the pending step is invalid
        # Ends of episodes (flags and episode) that are not received yet, because the next reset failed.
        self.held_ends: dict[int, tuple[int, Episode]] = {}
        self.restarted: set[int] = set()  # envs that failed since their step was sent
        self._unrestored: set[int] = set()  # saved envs whose replay did not lead to their state
        self.recovery = WorkerRecovery(pool, self.envs, failures, config.pre_reset)

    def replace_worker(
        self, worker: int, busy_row: int, reason: str, limit_s: float | None
    ) -> None:
        """Replace a worker that ended or exceeded a deadline, and recover its envs."""
        self.recovery.replace_worker(worker, busy_row, reason, limit_s)
        self._failures.report()

    # episodes

    def start_episode(self, index: int, row: int, command: int, delay_s: float = 0.0) -> None:
        """Begin the env's next episode in this row."""
        start = EpisodeStart(self.statistics.start_episode(index), self._reset_options)
        self.shared.write_start(row, start)
        self.envs.log.begin_afresh(index, start)
        self._send_reset(row, command, delay_s)

    def start_spare_episode(
        self, index: int, row: int, command: int = RESET, delay_s: float = 0.0
    ) -> None:
        """Begin the env's next episode in its spare row, ahead of time."""
        self._write_next_start(index, row)
        self._send_reset(row, command, delay_s)

    def _send_reset(self, row: int, command: int, delay_s: float) -> None:
        self.shared.delay_s[row] = delay_s
        self.shared.flags[row] = 0
        self.pool.send_command(row, command)

    def write_next_starts(self, indexes: Sequence[int]) -> None:
        """Write how workers begin the next episodes of these envs."""
        for index in indexes:
            self._write_next_start(index, int(self.envs.row[index]))

    def _write_next_start(self, index: int, row: int) -> None:
        start = EpisodeStart(self.statistics.next_seed(index), self._reset_options)
        self.shared.write_start(row, start)

    def change_reset_options(self, options: str) -> None:
        """Begin later episodes with other options, also those that were begun ahead of time."""
        self._reset_options = options
        self.pool.wait()  # workers read the rows of pending commands
        envs, flags = self.envs, self.shared.flags
        for index, row in enumerate(envs.row.tolist()):
            if index in envs.sent and flags[row]:
                continue  # the next episode of its result has begun
            if not self._config.pre_reset:
                self._write_next_start(index, row)
            elif not flags[spare := envs.other_row(row)]:
                self.start_spare_episode(index, spare)

    def finish_reset_of_all(self) -> None:
        """Note that all envs have begun their first episodes."""
        envs = self.envs
        envs.is_resetting[:] = [False] * len(envs.is_resetting)
        self.restarted.clear()
        envs.carried[:] = [self.shared.read_carry_over(int(row)) for row in envs.row]

    def finished_episode(self, index: int) -> Episode:
        """The env's episode, which has ended."""
        if index in self.held_ends:
            return self.held_ends[index][1]
        own_return = float(self.shared.unwrapped_return[self.envs.row[index]])
        self._failures.reset_attempts(index)
        return self.statistics.finished_episode(
            index, None if math.isnan(own_return) else own_return
        )

    def enter_next_episode(self, index: int) -> None:
        """Note that the env is in its next episode, and have the one after that begun if it has a spare row."""
        envs = self.envs
        old, row = int(envs.row[index]), int(envs.obs_row[index])
        self._log_episode(index, row, was_retried=old == row and index in self.restarted)
        envs.row[index] = row
        if old != row:
            command = RECREATE if index in self.restarted else RESET
            self.start_spare_episode(index, old, command)
        else:
            self.write_next_starts([index])
            self.shared.flags[row] = 0
        self.step_failed[index] = envs.is_resetting[index] = False
        self.held_ends.pop(index, None)
        self.restarted.discard(index)

    def _log_episode(self, index: int, row: int, was_retried: bool) -> None:
        """Log how the env's episode began. A retry started and logged it with `start_episode`."""
        envs, statistics = self.envs, self.statistics
        carried, last_length = self.shared.read_carry_over(row), statistics.length(index)
        start = self.shared.read_start(row)
        if not was_retried:
            start = start._replace(seed=statistics.start_episode(index))
        if carried != CONTINUES:
            envs.carried[index] = carried
            if not was_retried:
                envs.log.begin_afresh(index, start)
        elif was_retried:
            # The episode continues after a failure, which cannot be replayed.
            envs.log.mark_incomplete(index)
        else:
            envs.log.begin_continuing(index, start, last_length)

    # results

    def resolve_result(self, index: int) -> bool:
        """Return whether an idle env has its result. If not, send the next command for it."""
        shared, envs = self.shared, self.envs
        row, obs_row = int(envs.row[index]), int(envs.obs_row[index])
        flags = int(shared.flags[obs_row])
        if obs_row != row:  # the next episode was begun in the spare row, or failed to
            if flags & FAILED:
                self._retry_spare(index, obs_row)
            return not flags & FAILED
        is_resetting = envs.is_resetting[index]
        if not flags & FAILED and not is_resetting and not self._is_finite(row, flags):
            flags = FAILED
        if flags & FAILED:
            self._retry(index, row)
            return False
        if flags & NEXT_RESET_FAILED:
            self._hold_end(index, row, flags)
            self._retry(index, row)
            return False
        if flags & ENDED and self._config.pre_reset and not is_resetting:
            envs.obs_row[index] = envs.other_row(row)
            return False
        return True

    def _is_finite(self, row: int, flags: int) -> bool:
        shared = self.shared
        obs = (shared.final_obs if flags & ENDED else shared.obs)[row]
        if not self._check_finite or np.isfinite(obs).all():
            return True
        shared.write_error(row, f"the observation is not finite: {obs}")
        obs[...] = 0  # it is not used; the check of all rows at once would find it again
        return False

    def _retry(self, index: int, row: int) -> None:
        """Restart an env whose step or reset failed, or raise its error."""
        envs = self.envs
        self.restarted.add(index)
        is_counted = index in self._unrestored
        self._unrestored.discard(index)
        stepped = not envs.is_resetting[index]
        dropped_steps = self.statistics.length(index) + 1 if stepped else None
        if not is_counted and not self._failures.count_failure(index, dropped_steps):
            self._raise_error(index, row, dropped_steps or 0)
        envs.is_resetting[index] = True
        if stepped:
            self.step_failed[index] = True
            if self._config.pre_reset:
                envs.obs_row[index] = envs.other_row(row)
                return
        if is_counted:
            self.start_episode(index, row, RESET)
            return
        command = RECREATE if self._failures.recreates_env(index) else RESET
        self.start_episode(index, row, command, self._failures.retry_delay_s(index))

    def _retry_spare(self, index: int, row: int) -> None:
        if not self._failures.count_failure(index, None):
            self._raise_error(index, row, 0)
        self.statistics.skip_episode(index)
        command = RECREATE if self._failures.recreates_env(index) else RESET
        self.start_spare_episode(index, row, command, self._failures.retry_delay_s(index))

    def _hold_end(self, index: int, row: int, flags: int) -> None:
        """Hold the end of an episode until the next one, whose reset failed, has begun."""
        self.statistics.count_steps([index], self.shared.reward[row : row + 1])
        self.held_ends[index] = (flags & ENDED, self.finished_episode(index))
        self.envs.is_resetting[index] = True
        self.statistics.start_episode(index)  # the episode whose reset failed

    def _raise_error(self, index: int, row: int, step: int) -> NoReturn:
        """Raise the error of an env that has no attempt left; step 0 is the reset."""
        what, _, traceback = self.shared.read_error(row).partition("\n")
        actions, complete = self.envs.log.current_episode(index) if step else ([], True)
        start = self.envs.log.current_start(index) if step else self.shared.read_start(row)
        self._failures.report()
        limit_s = self.recovery.exceeded_limit_s
        error = self._make_error(index, start, step, actions, what, traceback, complete, limit_s)
        raise error from (WorkerTraceback(traceback) if traceback else None)

    # saved envs

    def adopt_history(self, index: int, history: EnvHistory, reason: str) -> None:
        """Continue a saved env that was replayed. With a `reason`, that failed: its next step restarts it."""
        envs = self.envs
        envs.is_resetting[index] = False
        envs.carried[index] = history.carried
        envs.log.restore(index, history.episodes)
        if reason:
            row = int(envs.row[index])
            self.shared.flags[row], self.shared.obs[row] = FAILED, history.obs
            envs.failed_while_idle.add(index)
            self._unrestored.add(index)
            envs.log.mark_incomplete(index)
            self._failures.count_unrestored(index, self.statistics.length(index), reason)
