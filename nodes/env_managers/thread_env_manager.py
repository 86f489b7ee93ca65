"""The env manager for envs that wait for others: simulators elsewhere, which a thread each asks."""

from __future__ import annotations

from flowrl.nodes.env_managers.worker_env_manager import WorkerEnvManager
from flowrl.nodes.env_managers.workers.shared_rows import SharedRows, shared_rows_for
from flowrl.nodes.env_managers.workers.worker import ManagerWaker, ThreadWorker, Worker
from flowrl.nodes.env_managers.workers.worker_loop import WorkerLoop


class ThreadEnvManager(WorkerEnvManager):
    """Envs in threads of this process, stepped together: the same bits as one after another.

    Of use where a step waits for something outside, or computes without Python's lock. An env that
    hangs is left alone in its thread, and made anew in another.
    """

    look_s = 0.0  # the lock that we would hold is what the threads need

    class Config(WorkerEnvManager.Config):
        pass

    def _default_envs_per_worker(self) -> int:
        return 1

    def _new_board(self, rows: int, workers: int) -> SharedRows:
        return shared_rows_for(self._obs_column, self._action_column, rows, workers)

    def _hire(self, worker: int, answers: ManagerWaker) -> Worker:
        count = self.config.count

        def server() -> WorkerLoop:
            return WorkerLoop(
                self._board,
                worker,
                self._groups[worker],
                lambda row: self._part.make(self._make_index(row % count)),
                self._obs_column,
                auto=not self.config.pre_reset,
            )

        return ThreadWorker(server, self._board, answers)
