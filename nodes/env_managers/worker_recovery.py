"""Recovers the envs of a worker that ended or hung, in the worker that replaces it.

Each env is replayed: reset as its episode began, and stepped with its actions. If it then observes the same as
before, it continues as if nothing had happened. So a worker that is killed from outside costs time only. An env that
ends its worker in the same place again has failed, and so has one that exceeded a deadline.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flowrl.nodes.env_managers.action_log import EpisodeActions
from flowrl.nodes.env_managers.env_history import CONTINUES
from flowrl.nodes.env_managers.env_states import EnvStates
from flowrl.nodes.env_managers.failures import FailureTracker
from flowrl.nodes.env_managers.history_replay import replay_in_workers
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


class WorkerRecovery:
    """Replaces workers, and recovers their envs."""

    def __init__(
        self, pool: WorkerPool, envs: EnvStates, failures: FailureTracker, pre_reset: bool
    ) -> None:
        self._pool, self._shared, self._envs = pool, pool.shared, envs
        self._failures, self._pre_reset = failures, pre_reset
        self.exceeded_limit_s: float | None = None  # the deadline that was exceeded last
        # Workers in which envs are being replayed, and why the worker ended meanwhile (empty: it did not).
        self._replaying: dict[int, str] = {}
        # Where each env last ended its worker: the seed and step of its episode.
        self._ended_worker_at: dict[int, tuple[int, int]] = {}

    def replace_worker(
        self, worker: int, busy_row: int, reason: str, limit_s: float | None
    ) -> None:
        """Replace a worker and recover its envs. It was busy with `busy_row` (-1: with none)."""
        if worker in self._replaying:  # it failed again during the replay, which notices that
            self._replaying[worker] = reason
            self._pool.discard_worker(worker)
            self._pool.respawn(worker)
            return
        rows = self._pool.rows_of[worker]
        pending = self._shared.command[rows.start : rows.stop].tolist()
        commands = dict(zip(rows, pending, strict=True))
        if busy_row < 0 and self._shared.state[worker] == STARTING:
            busy_row = next((row for row, command in commands.items() if command), -1)
        output = self._pool.discard_worker(worker)
        self._failures.counts.replaced_workers += 1
        self._pool.respawn(worker)
        if busy_row >= 0 and not self._may_try_again(busy_row, limit_s):
            self.exceeded_limit_s = limit_s
            del commands[busy_row]
            self._mark_failed(busy_row, f"{reason}\n{output}")
        # Pending commands are sent when all envs are recovered, because they may end the worker again.
        for row, command in self._recover_rows(worker, commands).items():
            if command:
                self._pool.send_command(row, command)

    def _recover_rows(self, worker: int, commands: dict[int, int]) -> dict[int, int]:
        """Recover these rows, and return the commands to send then.

        If an env ends the new worker, too, it is lost, and the recovery of the others starts again.
        """
        restored_before = self._failures.counts.restored_envs
        while True:
            self._replaying[worker], self._failures.counts.restored_envs = "", restored_before
            next_commands: dict[int, int] = {}
            for row, command in commands.items():
                next_commands[row] = self._recover_row(worker, row, command)
                if self._replaying[worker]:
                    commands = {r: c for r, c in commands.items() if r != row}
                    break
            else:
                del self._replaying[worker]
                return next_commands

    def _may_try_again(self, row: int, limit_s: float | None) -> bool:
        """Whether an env that was busy when its worker ended may have been killed from outside."""
        index = self._envs.index_of(row)
        position = (int(self._shared.seed[row]), self._envs.statistics.length(index))
        happened_before = self._ended_worker_at.get(index) == position
        self._ended_worker_at[index] = position
        return limit_s is None and not happened_before

    def _mark_failed(self, row: int, what: str) -> None:
        """Write a failure as the env's next result."""
        self._shared.write_error(row, what)
        self._shared.flags[row] = FAILED
        index = self._envs.index_of(row)
        if index not in self._envs.sent and row == self._envs.row[index]:
            self._envs.failed_while_idle.add(index)

    def _recover_row(self, worker: int, row: int, command: int) -> int:
        """Recover an env with its pending command, and return the command to send then."""
        index, flags = self._envs.index_of(row), int(self._shared.flags[row])
        if command in (RESET, RECREATE):
            return RESET
        if command != STEP:
            if flags & (FAILED | NEXT_RESET_FAILED):
                return IDLE  # it is restarted anyway
            if row != self._envs.row[index] or self._envs.is_resetting[index]:
                return RESET  # the row says how a spare's episode begins, or one not received yet
            if flags & ENDED and self._pre_reset:
                return IDLE  # it becomes the spare
        problem = self._replay_row(worker, row, command)
        if problem:
            self._shared.command[row] = IDLE
            self._mark_failed(row, f"its worker was replaced, and {problem}")
            return IDLE
        self._failures.counts.restored_envs += 1
        return command

    def _replay_row(self, worker: int, row: int, command: int) -> str:
        """Replay an env that was in an episode. Return what went wrong; empty if it is in the same state."""
        index, shared = self._envs.index_of(row), self._shared
        logged, complete = self._envs.log.episodes(index)
        episodes: Sequence[EpisodeActions] = logged
        if command == STEP:
            start, actions = logged[-1]
            episodes = [*logged[:-1], (start, actions[:-1])]  # the pending step is taken afterwards
        elif shared.flags[row] & ENDED:  # the env is in the next episode already
            next_episode: EpisodeActions = (shared.read_start(row), [])
            if shared.read_carry_over(row) == CONTINUES:
                episodes = [*logged, next_episode]
            else:
                episodes, complete = [next_episode], True
        if not complete:
            return "its episode is too long to be replayed"
        if episodes[0][0] == logged[0][0]:
            shared.write_carry_over(row, self._envs.carried[index])
        if self._leads_to_same_row(worker, row, episodes):
            return ""
        return self._replaying[worker] or "replaying its episode did not lead to the same state"

    def _leads_to_same_row(self, worker: int, row: int, episodes: Sequence[EpisodeActions]) -> bool:
        """Replay an env, and return whether it observes what its row says. If so, the row is left as it was."""
        shared = self._shared
        before = {name: getattr(shared, name)[row].copy() for name in shared.result_fields}
        finished = row in replay_in_workers(self._pool, {row: episodes})
        if self._replaying[worker] or not finished:
            return False
        if not np.array_equal(shared.obs[row], before["obs"]):
            return False
        for name, value in before.items():
            getattr(shared, name)[row] = value
        return True
